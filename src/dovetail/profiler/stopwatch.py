"""Timing what a device does: wall-clock time on the CPU, events on its own timeline on a GPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Takes marks, and says how long it was between two of them once the device has got there."""

    def mark(self) -> Any:
        """Return the present moment."""
        ...

    def seconds_between(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks."""
        ...


class WallClock:
    """For devices that have done their work when a call returns."""

    def mark(self) -> float:
        """Return the present moment."""
        return time.perf_counter()

    def seconds_between(self, earlier: float, later: float) -> float:
        """Return the seconds between two marks."""
        return later - earlier


class CudaEvents:
    """For a GPU, which works through a queue: events in the queue carry the time at which it reached them."""

    def mark(self) -> torch.cuda.Event:
        """Put an event into the queue."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds_between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        """Return the seconds between two events, waiting for the later one."""
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1e3


def stopwatch_for(device: torch.device) -> Stopwatch:
    """Return the stopwatch that fits a device."""
    return CudaEvents() if device.type == "cuda" else WallClock()
