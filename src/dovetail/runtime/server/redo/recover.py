"""A server that comes back: its shard as it was, from a checkpoint and its redo log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError
from dovetail.runtime.checkpoint import RunManifest, folder_of
from dovetail.runtime.server.gradients import TaskPart, WholeStep
from dovetail.runtime.server.redo.log import NAME, RedoLog
from dovetail.runtime.server.redo.records import Content, LogFacts, LogRecord, RecordKind, RedoDamageError
from dovetail.runtime.server.redo.ring import put_back
from dovetail.runtime.server.redo.writer import RedoFile
from dovetail.runtime.server.shard import ErrorFeedbackResidual, Shard


@dataclass(frozen=True, slots=True)
class Comeback:
    """What a server is when it begins."""

    era: int = -1
    """That of its state; -1 where it has none."""
    generation: int = -1
    """Of the sums that wait to be committed; below 1 where there are none."""
    word: str = ""
    """What became of its log."""


def come_back(log: RedoLog, shard: Shard, run_folder: Path, fetch: Callable[[], bool] | None = None) -> Comeback:
    """Bring a server to where it was when it died, by its log; where that is missing or damaged, by its copy.

    `fetch` gets the copy, where there is one. What is damaged is removed.
    """
    begun_s = time.perf_counter()
    found, words = _recover_or_why(log, shard, run_folder, "its redo log")
    if found is None and fetch is not None and fetch():
        found, more = _recover_or_why(log, shard, run_folder, "the copy of its redo log")
        words += more or ["the copy of its redo log is used"]
    if found is None:
        return Comeback(word="; ".join(words))
    first, generation = found
    num_steps, took_s = shard.version - first.first, time.perf_counter() - begun_s
    words.append(f"{num_steps} steps after the checkpoint of step {first.first} were done again in {took_s:.1f} s")
    return Comeback(first.era, generation, "; ".join(words))


def _recover_or_why(
    log: RedoLog, shard: Shard, run_folder: Path, what: str
) -> tuple[tuple[LogFacts, int] | None, list[str]]:
    """Return what `recover` does, or why the log cannot be used, in which case it is removed."""
    try:
        return recover(log, shard, run_folder), []
    except RedoDamageError as damage:
        log.drop()
        return None, [f"{what} is not used: {damage}"]


def recover(log: RedoLog, shard: Shard, run_folder: Path) -> tuple[LogFacts, int] | None:
    """Bring a shard to where its log ends; return where that begins, and the generation of sums that wait, or 0.

    None where there is no log.

    RedoDamageError where it is damaged, another's, or begins with no checkpoint that is there: the shard is void.
    """
    if not log.is_on:
        return None
    put_back(log.folder, log.rings)
    contents = [Content(path) for path in sorted(log.folder.glob("*.redo"))]
    if not contents:
        return None
    _check_chain(log, contents)
    contents = contents[_load_base(contents, shard, run_folder) :]
    facts = contents[0].facts
    if shard.version != facts.first:
        raise RedoDamageError(f"the checkpoint holds {shard.version} steps, and the log begins with {facts.first}")
    shard.forget_tasks(below=facts.next_task)
    again = Again(shard)
    try:
        for content in contents:
            if content.facts.first != shard.version:
                raise RedoDamageError(f"{content.path.name} does not begin where the one before ends")
            for record in content.records():
                again.do(record)
    except (DovetailError, ValueError, TypeError, IndexError) as error:
        raise RedoDamageError(f"it does not fit: {error}") from None
    generation = again.put_waiting()
    position = contents[0].facts.position
    for _ in range(shard.version - facts.first):
        position += log.step_positions(position)
    files = [RedoFile.reopen(content.path, content, log.rings) for content in contents]
    log.go_on(facts.era, position, files, is_written=generation > 0)
    return facts, generation


def _check_chain(log: RedoLog, contents: Sequence[Content]) -> None:
    """Refuse files of another run, server or era, and those that are not as long as they were."""
    era = contents[-1].facts.era
    for content in contents:
        facts, name = content.facts, content.path.name
        if (facts.run, facts.server, facts.num_servers) != log.owner:
            raise RedoDamageError(f"{name} is of another run or server")
        if facts.era != era or name != NAME.format(era=facts.era, first=facts.first):
            raise RedoDamageError(f"{name} is of another time of this run")
        if content is not contents[-1] and content.size != content.path.stat().st_size:
            raise RedoDamageError(f"{name} is damaged after byte {content.size}")


def _load_base(contents: Sequence[Content], shard: Shard, run_folder: Path) -> int:
    """Load the newest checkpoint that a file begins with; return which file that is."""
    why = "there is no checkpoint that it begins with"
    for place in reversed(range(len(contents))):
        folder = folder_of(run_folder, contents[place].facts.first)
        if not folder.is_dir():
            continue
        try:
            RunManifest.read(folder).check_files(folder)
            shard.load(folder)
        except (DovetailError, OSError) as error:
            why = str(error)
        else:
            return place
    raise RedoDamageError(why)


class Again:
    """Does again what a log says."""

    def __init__(self, shard: Shard) -> None:
        """Begin with a shard as the checkpoint has it."""
        self._shard = shard
        self._waiting: tuple[LogRecord, WholeStep] | None = None

    def do(self, record: LogRecord) -> None:
        """Do what one record says."""
        if record.kind is RecordKind.COMMIT:
            self._commit(record)
            return
        if record.kind is RecordKind.KEPT_BACK:
            self._take_back(record)
            return
        step = _gradients(record)
        part = TaskPart(0, record.number, "", rows=step.rows, dense=step.dense)
        self._shard.check(part)
        if record.kind is RecordKind.SUMS:
            self._waiting = (record, step)
            return
        factors: dict[str, Any] = {name: float(record.details[name]) for name in ("scale", "factor")}
        if not self._shard.apply(part, **factors):
            raise RedoDamageError(f"task {record.number} is there twice")

    def _commit(self, record: LogRecord) -> None:
        """Apply the step whose sums came before."""
        version = self._shard.version
        if self._waiting is None or not self._waiting[0].number == record.number == version:
            raise RedoDamageError(f"step {record.number} counts, and is not the one after {version}")
        self._shard.put_step(self._waiting[1])
        self._waiting = None
        factors: dict[str, Any] = {name: float(record.details[name]) for name in ("scale", "dense_scale", "factor")}
        self._shard.commit(**factors)
        self._shard.settle()

    def _take_back(self, record: LogRecord) -> None:
        """Take up what workers that left kept back."""
        size = len(self._shard.values)
        if len(record.arrays) > 1 or any(array.shape != (size,) for array in record.arrays):
            raise RedoDamageError(f"what workers kept back before step {record.number} has another size")
        if record.details["all"]:
            self._shard.returned = ErrorFeedbackResidual(size)
        for kept in record.arrays:
            self._shard.returned.add(kept, worker="", checkpoint=-1)

    def put_waiting(self) -> int:
        """Take up the sums that no commit came for; return their generation, or 0 where there are none."""
        if self._waiting is None or self._waiting[0].number != self._shard.version:
            return 0
        self._shard.put_step(self._waiting[1])
        return self._waiting[0].generation


def _gradients(record: LogRecord) -> WholeStep:
    tables, arrays = record.details["tables"], list(record.arrays)
    has_dense, has_norms = bool(record.details["dense"]), bool(record.details["norms"])
    if len(arrays) != 2 * len(tables) + has_dense + has_norms:
        raise RedoDamageError(f"record {record.number} has {len(arrays)} arrays")
    norms = arrays.pop() if has_norms else None
    dense = arrays.pop() if has_dense else None
    rows = [(int(table), arrays[2 * n], arrays[2 * n + 1]) for n, table in enumerate(tables)]
    return WholeStep(rows, dense, norms)
