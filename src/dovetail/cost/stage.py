"""What one stage takes for one batch, as formulas.

A stage of layers `l` on one type with `k` units, each layer measured on ONE unit:

    compute(k) = sum_l c_l (1 - a_l + a_l / k)                         Amdahl's law on computation
    comm(k)    = sum_l d_l (1 - b_l + b_l / k) + cuts at both ends     and on communication
    time(k)    = max(compute(k), comm(k))                              the one hides behind the other
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.spec import LayerTime


def amdahl_seconds(seconds_on_one: float, *, parallel: float, units: int) -> float:
    """Return what `units` take for work that one takes `seconds_on_one` for, of which `parallel` can be shared."""
    return seconds_on_one * (1 - parallel + parallel / units)


def compute_seconds(layers: Iterable[LayerTime], *, units: int) -> float:
    """Return the seconds of computation of a stage for one batch."""
    return sum(amdahl_seconds(layer.compute_s, parallel=layer.compute_parallel, units=units) for layer in layers)


def comm_seconds(layers: Iterable[LayerTime], *, units: int) -> float:
    """Return the seconds of communication of a stage for one batch, its cuts left out."""
    return sum(amdahl_seconds(layer.comm_s, parallel=layer.comm_parallel, units=units) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What one stage takes for one batch: `comm_s` is for its layers, `cut_s` for the cuts at its two ends."""

    compute_s: float
    comm_s: float
    cut_s: float

    @property
    def seconds(self) -> float:
        """The time of the stage: computation and communication hide behind each other."""
        return max(self.compute_s, self.comm_s + self.cut_s)


def add_up(layers: Iterable[LayerTime], *, units: int, cut_s: float = 0.0) -> StageTimes:
    """Return what a stage of these layers takes for one batch; `cut_s` is what the cuts at its two ends add."""
    times = list(layers)
    return StageTimes(
        compute_s=compute_seconds(times, units=units), comm_s=comm_seconds(times, units=units), cut_s=cut_s
    )
