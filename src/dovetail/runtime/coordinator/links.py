"""Which width every worker's links have, where that is chosen while a run goes on, and what it brought."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.runtime.folder import WIDTHS, LinkSummary
from dovetail.runtime.messages import Tuned


class Links:
    """What was decided of each link, as workers tell it."""

    def __init__(self, folder: Path) -> None:
        """Write every decision into the run's folder as well, for the timeline."""
        self._file = folder / WIDTHS
        self.summary: dict[str, LinkSummary] = {}

    def add(self, message: Tuned) -> str:
        """Take in a decision; return it in words."""
        name = f"{message.name} {message.link}"
        before = self.summary.get(name, LinkSummary(bits=32, gain=1.0, changes=0))
        is_change = message.before != message.bits
        gain = 1.0 if message.bits == 32 else before.gain if is_change else before.gain * message.gain
        self.summary[name] = LinkSummary(bits=message.bits, gain=round(gain, 3), changes=before.changes + is_change)
        line = [round(time.time(), 3), message.name, message.link, message.before, message.bits, message.gain]
        with suppress(OSError), self._file.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        if is_change:
            return f"{name}: {message.bits} bits instead of {message.before}, for {message.reason}"
        return f"{name}: with {message.bits} bits {message.reason} ({message.gain:.1f}x)"

    def bits_of(self, worker: str) -> str:
        """Return the fewest bits of a worker's links, there and back; nothing where none was ever chosen."""
        mine = {name: each.bits for name, each in self.summary.items() if name.startswith(f"{worker} ")}
        if not mine:
            return ""
        there = [bits for name, bits in mine.items() if name.startswith(f"{worker} to ")]
        back = [bits for name, bits in mine.items() if name.startswith(f"{worker} from ")]
        return f"{min(there, default=32)}/{min(back, default=32)}"
