"""A clock that nobody can set: seconds since 1970 as they would be had the machine's clock been left alone.

Everything the daemon times goes by it: graces, ages, how long things took. It runs with the machine's monotonic clock,
and where it began is kept in the state, so the next daemon has the same time; after the machine itself has started anew
it goes on no earlier than it was. What people are shown is turned into the time of day.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

BOOT = Path("/proc/sys/kernel/random/boot_id")


class ClockOrigin(msgspec.Struct, frozen=True):
    """Where a clock began, as the state keeps it."""

    boot: str
    """The start of the machine that the monotonic clock counts from."""
    ahead_s: float
    """How far the clock is ahead of the monotonic one."""


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """The daemon's time."""

    origin: ClockOrigin

    @classmethod
    def begin(cls, kept: str | None, last_s: float) -> SteadyClock:
        """Go on with the clock that the state keeps; else begin one that is not before `last_s`."""
        boot = boot_id()
        if kept is not None:
            origin = msgspec.json.decode(kept, type=ClockOrigin)
            if boot and origin.boot == boot:
                return cls(origin)
        return cls(ClockOrigin(boot=boot, ahead_s=max(time.time(), last_s) - time.monotonic()))

    @property
    def kept(self) -> str:
        """What the state is to keep."""
        return msgspec.json.encode(self.origin).decode()

    def now_s(self) -> float:
        """Return the time."""
        return time.monotonic() + self.origin.ahead_s

    def day_ahead_s(self) -> float:
        """Return how far the time of day is ahead of this clock: what somebody has set it by."""
        return time.time() - self.now_s()


def boot_id() -> str:
    """Return which start of the machine this is; nothing where that is not known."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
