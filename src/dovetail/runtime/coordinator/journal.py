"""The coordinator's journal: what was decided, line by line, so that a coordinator that comes back goes on from there.

    {"start": {...}}     a generation begins: the whole state
    {"commit": {...}}    a step counts: written before any server is told
    {"task": [...]}      a task was made (ssp, async): number, epoch, first, last
    {"done": number}     every server has applied it

The lines after the last `start` lead from there to now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dovetail.runtime.folder import JOURNAL


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generation begins."""

    generation: int
    step: int
    position: int
    next_task: int = 0
    tasks: tuple[tuple[int, int, int, int], ...] = ()
    samples_done: int = 0


class CommitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A step that counts."""

    step: int
    position: int
    scale: float
    dense_scale: float
    factor: float


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line: one of its entries is there."""

    start: Start | None = None
    commit: CommitLine | None = None
    task: tuple[int, int, int, int] | None = None
    done: int | None = None


class Past(msgspec.Struct, kw_only=True):
    """What the journal says: the last start, the last commit after it, and tasks that are not done."""

    start: Start
    commit: CommitLine | None = None
    position: int = 0
    next_task: int = 0
    made: list[tuple[int, int, int, int]] = msgspec.field(default_factory=list)
    """All tasks made since the start, done or not."""
    tasks: dict[int, tuple[int, int, int, int]] = msgspec.field(default_factory=dict)


class Journal:
    """Appends lines; a line that was cut short by a crash is left out when reading."""

    def __init__(self, folder: Path) -> None:
        """Open the journal of a run."""
        self._path = folder / JOURNAL
        self._file = self._path.open("ab", buffering=0)
        if self._path.stat().st_size and not self._path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # what a power cut left of a line
        self._encoder = msgspec.json.Encoder()
        self._broken = False

    def write(self, **entry: Any) -> bool:
        """Append a line, which survives the end of this process; False where there is no room for it.

        A journal that lacks a line would lead elsewhere, so it is emptied: a coordinator that comes back then goes
        back to the last checkpoint. The next `start` begins a new one.
        """
        if self._broken and "start" not in entry:
            return False
        line = self._encoder.encode(Line(**entry)) + b"\n"
        try:
            written = self._file.write(line)
        except OSError:
            written = 0
        self._broken = written != len(line)
        if self._broken:
            self._file.truncate(0)
        return not self._broken

    def past(self) -> Past | None:
        """Return what the journal says, or None where it says nothing."""
        past: Past | None = None
        for line in self._lines():
            if line.start is not None:
                past = Past(
                    start=line.start,
                    position=line.start.position,
                    next_task=line.start.next_task,
                    tasks={task[0]: task for task in line.start.tasks},
                )
            elif past is not None and line.commit is not None:
                past.commit, past.position = line.commit, line.commit.position
            elif past is not None and line.task is not None:
                past.tasks[line.task[0]] = line.task
                past.next_task = max(past.next_task, line.task[0] + 1)
                past.made.append(line.task)
            elif past is not None and line.done is not None:
                past.tasks.pop(line.done, None)
        return past

    def _lines(self) -> Iterator[Line]:
        """Yield the lines that can be read."""
        decoder = msgspec.json.Decoder(Line)
        for text in self._path.read_bytes().splitlines():
            try:
                yield decoder.decode(text)
            except msgspec.MsgspecError:
                continue

    def close(self) -> None:
        """Close the file."""
        self._file.close()
