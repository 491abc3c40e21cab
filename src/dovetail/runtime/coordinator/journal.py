"""The coordinator's journal: what was decided, line by line, so that a coordinator that comes back goes on from there.

    {"start": {...}}     where the run stands as a whole; what came before does not matter any more
    {"commit": {...}}    a step counts: written before any server is told
    {"task": [...]}      a task was made (ssp, async): number, first position, last position
    {"done": number}     every server has applied it

A `start` begins the file anew; the lines after it lead from there to now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dovetail.runtime.folder import JOURNAL

TaskLine = tuple[int, int, int]
"""Number, first position and the one after the last, over all epochs."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands."""

    generation: int
    era: int
    step: int
    position: int
    next_task: int = 0
    tasks: tuple[TaskLine, ...] = ()
    """Those that are not done."""
    holders: tuple[str, ...] = ()
    """Workers of a ring: they hold the dense parameters."""


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
    task: TaskLine | None = None
    done: int | None = None


class Past(msgspec.Struct, kw_only=True):
    """Where a run stood: the last start, the last commit after it, and tasks that are not done."""

    start: Start
    commit: CommitLine | None = None
    position: int = 0
    next_task: int = 0
    tasks: dict[int, TaskLine] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, start: Start) -> Past:
        """Return where a run stands that has done nothing since."""
        tasks = {task[0]: task for task in start.tasks}
        return cls(start=start, position=start.position, next_task=start.next_task, tasks=tasks)

    @property
    def step(self) -> int:
        """Return how many steps count."""
        return self.commit.step + 1 if self.commit is not None else self.start.step

    def add(self, line: Line) -> None:
        """Take in what was decided next."""
        if line.commit is not None:
            self.commit, self.position = line.commit, line.commit.position
        elif line.task is not None:
            number, _, last = line.task
            self.tasks[number] = line.task
            self.next_task = max(self.next_task, number + 1)
            self.position = max(self.position, last)
        elif line.done is not None:
            self.tasks.pop(line.done, None)


def past_of(lines: Iterator[Line]) -> Past | None:
    """Return where a run stands by its journal, or None where that says nothing."""
    past: Past | None = None
    for line in lines:
        if line.start is not None:
            past = Past.of(line.start)
        elif past is not None:
            past.add(line)
    return past


class Journal:
    """Appends lines; one that a crash left unfinished is passed over when reading."""

    def __init__(self, folder: Path) -> None:
        """Open the journal of a run."""
        self._path = folder / JOURNAL
        self._file = self._path.open("ab", buffering=0)
        if self._path.stat().st_size and not self._path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # what a power cut left of a line
        self._encoder = msgspec.json.Encoder()
        self._broken = False

    def write(self, line: Line) -> bool:
        """Append a line, which survives the end of this process; False where there is no room for it.

        A journal that lacks a line would lead elsewhere, so it is emptied: a coordinator that comes back then goes
        back to the last checkpoint. The next `start` begins a new one.
        """
        if line.start is not None:
            return self._begin(line)
        if self._broken:
            return False
        text = self._encoder.encode(line) + b"\n"
        try:
            written = self._file.write(text)
        except OSError:
            written = 0
        self._broken = written != len(text)
        if self._broken:
            self._file.truncate(0)
        return not self._broken

    def _begin(self, line: Line) -> bool:
        """Begin the file anew; the old one is there until the new one is."""
        beside = self._path.with_suffix(".new")
        try:
            beside.write_bytes(self._encoder.encode(line) + b"\n")
            beside.replace(self._path)
            file = self._path.open("ab", buffering=0)
        except OSError:
            self._broken = True
            self._file.truncate(0)
        else:
            self._broken = False
            self._file.close()
            self._file = file
        return not self._broken

    def past(self) -> Past | None:
        """Return what the journal says, or None where it says nothing."""
        return past_of(self._lines())

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
