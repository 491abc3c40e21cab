"""A server's redo log: after its death the server is what it was, from a checkpoint and what came after it.

In `sync` the sums of a step are written before the coordinator hears that they are all here, and so before the step can
count; that it counts, and how it is applied, is written before it is applied. In `ssp` and `async` each task is written
before it is applied. To do the same again with the same numbers in the same order gives the same bits. Sums are never
larger than the rows that they change, which have a state of their optimizer besides.

    redo/server-0/e000001-v0000000120.redo    what came after step 120, of the era that began with generation 1
    server-0.ring, in shared memory           the last of it, while it is written; else redo/server-0/fresh.ring

A file begins with every checkpoint; those before go when the checkpoint is whole.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.messages import Commit, LogNote
from dovetail.runtime.sealed import checksum_of_value
from dovetail.runtime.server.gradients import Floats, RowGradients, WholeStep
from dovetail.runtime.server.redo.records import LogFacts, RecordKind
from dovetail.runtime.server.redo.ring import RING, remove_rings
from dovetail.runtime.server.redo.writer import RedoFile
from dovetail.runtime.server.shard import Shard

NAME = "e{era:06d}-v{first:010d}.redo"
EARLY = 0.6
"""The part of its room that a log may take before a checkpoint is asked for."""


@dataclass(slots=True)
class Cost:
    """What the log took."""

    seconds: float = 0.0
    num_bytes: int = 0


class RedoLog:
    """The files of one server; a log that cannot go on says why, and begins again with the next checkpoint."""

    def __init__(
        self, blueprint: Blueprint, number: int, folder: Path, shard: Shard, memory: Path | None = None
    ) -> None:
        """Look after a shard; nothing is written before `begin` or `go_on`. `memory` is a folder in shared memory."""
        faults = blueprint.run.faults
        self.is_on = faults.redo_log and not blueprint.run.sites  # exchanges would have to be in it as well
        self._most_bytes = self._log_bytes = faults.log_bytes
        """How large it may get, with what of the disk is free."""
        self.folder, self._shard = folder, shard
        in_memory = [] if memory is None else [memory / f"{blueprint.servers[number].name}.ring"]
        self.rings = (*in_memory, folder / RING)
        """Where the end of the log may be."""
        self.owner = (checksum_of_value(blueprint), number, blueprint.num_servers)
        self._samples, self._batch = blueprint.samples, blueprint.batch
        self._has_kept_back = blueprint.run.compression.is_wanted and shard.keeps_dense
        self.files: list[RedoFile] = []
        """The last one is written to."""
        self._era = -1
        self._position = 0
        self._seen = 0
        """Positions of the step under way that are in its sums."""
        self._generation = 0
        self._is_written = False
        """Whether the sums of the step under way are in the log."""
        self.cost = Cost()
        self.wants_checkpoint = False
        self.words: list[str] = []
        """What people should hear."""

    # -- where it begins and ends --------------------------------------------------------------------------------------

    def _facts(self, *, next_task: int = 0) -> LogFacts:
        """Return the header of a file that begins now."""
        return LogFacts(
            run=self.owner[0],
            server=self.owner[1],
            num_servers=self.owner[2],
            era=self._era,
            first=self._shard.version,
            position=self._position,
            next_task=next_task,
        )

    def begin(self, era: int, checkpoint: Path) -> None:
        """Begin with a checkpoint that the shard has just taken up: what was before is void."""
        self.drop()
        self._era = era
        self._position = RunManifest.read(checkpoint).in_epochs_of(self._samples).position
        self._forget_step()
        self._begin_file(next_task=0)

    def go_on(self, era: int, position: int, files: list[RedoFile], *, is_written: bool) -> None:
        """Go on with files that were read and done again; `is_written` where they end with sums that wait."""
        self._era, self._position, self.files = era, position, files
        self._forget_step()
        self._is_written = is_written
        self._seen = self.step_positions(position) if is_written else 0

    def at_checkpoint(self, next_task: int) -> None:
        """Begin a file: what comes now is not in the checkpoint that is being written."""
        if self.files and self.files[-1].facts.first == self._shard.version:
            return  # another checkpoint of the same step
        self.wants_checkpoint = False
        if self._era >= 0:
            self._begin_file(next_task=next_task)
            self._is_written = False
            self.step_grew(generation=self._generation, positions=0)  # the commit of whole sums will be in this file

    def kept(self, step: int) -> None:
        """Remove the files of which a checkpoint that is whole holds everything."""
        if any(file.facts.first == step for file in self.files):
            while self.files[0].facts.first < step:
                self._remove(self.files.pop(0))

    def drop(self) -> None:
        """Remove everything."""
        for file in self.files:
            self._remove(file)
        self.files = []
        if self.is_on:
            for path in self.folder.glob("*.redo"):
                with suppress(OSError):
                    path.unlink()
            remove_rings(self.folder, self.rings)

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
        self.files = []

    def _begin_file(self, *, next_task: int) -> None:
        """Have what comes now in a file of its own."""
        if not self.is_on:
            return
        facts = self._facts(next_task=next_task)
        try:
            file = RedoFile.make(self.folder / NAME.format(era=facts.era, first=facts.first), facts, self.rings)
            self.files.append(file)
            free = shutil.disk_usage(self.folder).free
            self._most_bytes = min(self._log_bytes, sum(each.size for each in self.files) + free // 2)
            if len(self.files) > 1 and (ring := self.files[-2].finish()) is not None:
                file.take(ring)
        except OSError as error:
            self._give_up(f"its log cannot be written: {error}")
            return
        if self._has_kept_back:  # the checkpoint has what living workers keep back as well, who still have it
            returned = self._shard.returned
            arrays = [returned.waiting] if returned.is_any else []
            self._append(RecordKind.KEPT_BACK, self._shard.version, 0, {"all": True}, arrays)

    def _remove(self, file: RedoFile) -> None:
        file.close()
        with suppress(OSError):
            file.path.unlink()

    # -- what happens --------------------------------------------------------------------------------------------------

    def step_grew(self, *, generation: int, positions: int) -> bool:
        """Note that a task of so many positions is in the sums of the step; write them once all are, and say so."""
        self._generation = generation
        self._seen += positions
        self._is_written = self._is_written and not positions
        is_whole = self._seen >= self.step_positions(self._position)
        if self.files and not self._is_written and is_whole:
            self._write_sums(generation)
        return is_whole

    def step_positions(self, position: int) -> int:
        """Return how many positions a step has that begins with one."""
        return min(self._batch, self._samples - position % self._samples)

    def _write_sums(self, generation: int) -> None:
        self._append_step(RecordKind.SUMS, self._shard.version, generation, {}, self._shard.step_sums())
        self._is_written = bool(self.files)

    def commit(self, message: Commit) -> None:
        """Note that the step counts, before it is applied."""
        if self.files:
            if not self._is_written:
                self._write_sums(message.generation)
            scales = {"scale": message.scale, "dense_scale": message.dense_scale, "factor": message.factor}
            self._append(RecordKind.COMMIT, message.step, message.generation, scales)
        self._position += self.step_positions(self._position)
        self._forget_step()

    def before_apply(
        self, task: int, rows: Sequence[RowGradients], dense: Floats | None, *, scale: float, factor: float
    ) -> None:
        """Write a task that is about to be applied."""
        if self.files:
            self._append_step(RecordKind.TASK, task, 0, {"scale": scale, "factor": factor}, WholeStep(rows, dense))

    def take_back(self, kept: Floats, *, worker: str, checkpoint: int) -> None:
        """Have the shard take in what a worker keeps back; write it where the worker leaves."""
        if self.files and checkpoint < 0:
            self._append(RecordKind.KEPT_BACK, self._shard.version, 0, {"all": False}, [kept])
        self._shard.returned.add(kept, worker=worker, checkpoint=checkpoint)

    def discarded(self) -> None:
        """Note that the step under way was thrown away."""
        self._forget_step()

    def _forget_step(self) -> None:
        self._seen, self._is_written = 0, False

    def _append_step(
        self, kind: RecordKind, number: int, generation: int, details: dict[str, Any], step: WholeStep
    ) -> None:
        arrays: list[NDArray[Any]] = [array for _, keys, values in step.rows for array in (keys, values)]
        arrays += [each for each in (step.dense, step.norms) if each is not None]
        tables = [position for position, _, _ in step.rows]
        has = {"tables": tables, "dense": step.dense is not None, "norms": step.norms is not None}
        self._append(kind, number, generation, details | has, arrays)

    def _append(
        self,
        kind: RecordKind,
        number: int,
        generation: int,
        details: dict[str, Any],
        arrays: Sequence[NDArray[Any]] = (),
    ) -> None:
        """Append a record; a log without room for it is of no use any more."""
        if not self.files:
            return
        begun_s, file = time.perf_counter(), self.files[-1]
        before, size = file.size, sum(each.size for each in self.files)
        if size + sum(array.nbytes for array in arrays) > self._most_bytes:
            self._give_up(f"its log is full, {self._most_bytes:,} bytes")
            return
        try:
            file.append(kind, number, generation, details, arrays)
        except OSError as error:
            self._give_up(f"its log cannot be written: {error}")
            return
        self.cost.num_bytes += file.size - before
        self.wants_checkpoint = self.wants_checkpoint or file.size > EARLY * self._most_bytes
        self.cost.seconds += time.perf_counter() - begun_s + file.more_thread_s()

    def note(self, name: str) -> LogNote | None:
        """Return what the coordinator should know, where there is anything."""
        if not (self.words or self.wants_checkpoint):
            return None
        words, self.words = self.words, []
        return LogNote(name=name, word="; ".join(words), wants_checkpoint=self.wants_checkpoint)

    def _give_up(self, why: str) -> None:
        """Go on without a log: one that lacks something leads elsewhere."""
        self.drop()
        self.wants_checkpoint = True
        self.words.append(f"{why}; until the next checkpoint, its death takes the run back to the last one")
