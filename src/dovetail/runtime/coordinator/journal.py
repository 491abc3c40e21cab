"""The coordinator's journal: what was decided, line by line, so that a coordinator that comes back goes on from there.

    {"start": {...}}     where the run stands as a whole; what came before does not matter any more
    {"commit": {...}}    a step counts: written before any server is told
    {"ring": [...]}      these workers hold the dense parameters, in a ring or one of each stage
    {"task": [...]}      a task was made (ssp, async): number, first position, last position
    {"done": number}     every server has applied it

A `start` begins the file anew; the lines after it lead from there to now. What is one decision less, or another, leads
elsewhere, so the whole file counts or none of it does:

    {"journal":"<checksum of the blueprint>","lines":"0000000002"}    whose it is, and how many lines it has at least
    {"start":{...},"sum":"<16 digits>"}                               each sum is of the line and of the sum before it
    {"commit":{...},"sum":"<16 digits>"}
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.runtime.folder import JOURNAL
from dovetail.runtime.sealed import checksum_of_bytes

TaskLine = tuple[int, int, int]
"""Number, first position and the one after the last, over all epochs."""


class StartLine(msgspec.Struct, frozen=True, kw_only=True):
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


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line: one of its entries is there."""

    start: StartLine | None = None
    commit: CommitLine | None = None
    task: TaskLine | None = None
    done: int | None = None
    ring: tuple[str, ...] | None = None


class Past(msgspec.Struct, kw_only=True):
    """Where a run stood: the last start, the last commit after it, and tasks that are not done."""

    start: StartLine
    commit: CommitLine | None = None
    position: int = 0
    next_task: int = 0
    tasks: dict[int, TaskLine] = msgspec.field(default_factory=dict)
    holders: tuple[str, ...] = ()
    """Workers of a ring that hold the dense parameters."""

    @classmethod
    def of(cls, start: StartLine) -> Past:
        """Return where a run stands that has done nothing since."""
        tasks = {task[0]: task for task in start.tasks}
        return cls(start=start, position=start.position, next_task=start.next_task, tasks=tasks, holders=start.holders)

    @property
    def step(self) -> int:
        """Return how many steps count."""
        return self.commit.step + 1 if self.commit is not None else self.start.step

    @property
    def num_counted(self) -> int:
        """Return how many steps count; in ssp and async, tasks: those that every server has applied."""
        made = self.next_task - self.start.next_task + len(self.start.tasks)
        return self.step + made - len(self.tasks)

    def add(self, line: JournalLine) -> None:
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
        elif line.ring is not None:
            self.holders = line.ring


def past_of(lines: Iterator[JournalLine]) -> Past | None:
    """Return where a run stands by its journal, or None where that says nothing."""
    past: Past | None = None
    for line in lines:
        if line.start is not None:
            past = Past.of(line.start)
        elif past is not None:
            past.add(line)
    return past


class Journal:
    """Appends lines; read again, it says all that was written or nothing."""

    def __init__(self, folder: Path, *, root: str) -> None:
        """Open the journal of a run; `root` is the checksum of the blueprint, under which alone it means anything."""
        self._path, self._root = folder / JOURNAL, root
        self._encoder = msgspec.json.Encoder()
        self._sum, self._num_lines = root, 0
        self._past: list[JournalLine] | None = self._read()
        self._file = self._path.open("r+b" if self._path.exists() else "w+b", buffering=0)
        self._broken = self._past is None
        """Whether a line is missing: nothing is written until the next `start`, and nothing is read."""
        if self._broken:
            self._file.truncate(0)
        self._file.seek(0, os.SEEK_END)

    def past(self) -> Past | None:
        """Return what the journal said when it was opened, or None where it said nothing."""
        return past_of(iter(self._past or ()))

    def write(self, line: JournalLine) -> bool:
        """Append a line, which survives the end of this process; False where there is no room for it.

        A journal that lacks a line would lead elsewhere, so it is emptied: a coordinator that comes back then goes
        back to the last checkpoint. The next `start` begins a new one.
        """
        if line.start is not None:
            return self._begin(line)
        if self._broken:
            return False
        text, self._sum = self._sealed(line, self._sum)
        try:
            written = self._file.write(text)
            self._num_lines += 1
            os.pwrite(self._file.fileno(), self._header(), 0)
        except OSError:
            written = 0
        if written != len(text):
            self._give_up()
        return not self._broken

    def _begin(self, line: JournalLine) -> bool:
        """Begin the file anew; the old one is there until the new one is."""
        self._num_lines = 1
        text, self._sum = self._sealed(line, self._root)
        try:
            replace_file(self._path, self._header() + text)
            file = self._path.open("r+b", buffering=0)
        except OSError:
            self._give_up()
        else:
            file.seek(0, os.SEEK_END)
            self._broken = False
            self._file.close()
            self._file = file
        return not self._broken

    def _give_up(self) -> None:
        """Say nothing any more rather than something else."""
        self._broken = True
        with suppress(OSError):
            self._file.truncate(0)

    def _header(self) -> bytes:
        """Return the first line, which is always as long."""
        return self._encoder.encode({"journal": self._root, "lines": f"{self._num_lines:010d}"}) + b"\n"

    def _sealed(self, line: JournalLine, before: str) -> tuple[bytes, str]:
        """Return a line with its sum, and the sum."""
        body = self._encoder.encode(line)
        total = checksum_of_bytes(before.encode() + body, size=8)
        return body[:-1] + b',"sum":"' + total.encode() + b'"}\n', total

    def _read(self) -> list[JournalLine] | None:
        """Return the lines, or None where one is missing, or not what was written, or of another run."""
        try:
            header, *texts = self._path.read_bytes().split(b"\n")
            found = msgspec.json.decode(header, type=dict[str, str])
            if found.keys() != {"journal", "lines"} or found["journal"] != self._root:
                return None
            if not texts or texts.pop() != b"" or len(texts) < int(found["lines"]):
                return None  # it was cut short
            lines = [msgspec.json.decode(text, type=JournalLine) for text in texts]
        except (OSError, msgspec.MsgspecError, ValueError):
            return None
        for line, text in zip(lines, texts, strict=True):
            expected, self._sum = self._sealed(line, self._sum)
            if expected != text + b"\n":
                return None
        self._num_lines = len(lines)
        return lines

    def close(self) -> None:
        """Close the file."""
        self._file.close()
