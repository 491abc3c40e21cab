"""What one server keeps: its rows of every table and its slice of the dense parameters, and how steps change them.

In `sync`, gradients of rows are summed as they arrive. When the step is committed, the rows that workers ask for are
updated first and the others when there is time: nobody can see a row that is not up to date.

No sockets and no clock: `loop` brings messages here. One thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Checkpoint, Table
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import (
    RESIDUAL,
    Manifest,
    load_vectors,
    read_statistics,
    save_dense,
    table_folder,
    write_statistics,
)
from dovetail.runtime.dense.exempt import exact_places
from dovetail.runtime.dense.groups import optimizer_of
from dovetail.runtime.server.attempts import Attempts, BeforeApply, Floats, Keys, RowGradients, copied
from dovetail.runtime.server.gradient_sums import GradientSums
from dovetail.runtime.server.norm_sums import NormSums
from dovetail.runtime.server.requests import check_gradients, check_wanted
from dovetail.runtime.server.returned import Returned
from dovetail.runtime.server.row_steps import step_rows
from dovetail.runtime.server.step_sums import StepSums, WholeStep
from dovetail.runtime.server.tables import load_table


class Shard:
    """The parameters of one server, and the gradients that wait for the step to be committed."""

    def __init__(self, blueprint: Blueprint, number: int, folder: Path) -> None:
        """Make an empty shard; `load` fills it. Cold rows go into `folder`."""
        self._blueprint, self._number, self._folder = blueprint, number, folder
        self._slice = blueprint.dense_slice(number)
        self._optimizer = optimizer_of(blueprint, self._slice)
        size = self._slice.stop - self._slice.start
        self.keeps_dense = blueprint.run.training.dense == "ps"
        self.values = np.zeros(size if self.keeps_dense else 0, dtype=np.float32)
        self._state: dict[str, Floats] = {}
        self.exact = exact_places(blueprint.dense, self._slice)
        """Where in this part dense numbers are that no codec touches."""
        self.returned = Returned(len(self.values))
        self.tables: list[Table] = []
        self.version = -1
        self._dense_steps = 0
        self._all_before = 0
        """In ssp and async: tasks below this number are applied."""
        self._accepted: set[tuple[int, int]] = set()
        """(step, task) in sync, (0, task) else: what counts already."""
        self._attempts = Attempts()
        """In ssp and async: tasks of which parts have come."""
        self._step = StepSums((), 0)
        """In sync: the gradients of the step under way."""
        self._due: list[GradientSums] = []
        """Sums of the step that was committed last, those that are not applied yet."""
        self._due_scale, self._due_factor = 1.0, 1.0
        self.is_settled = True
        self.before_apply: BeforeApply | None = None
        """In ssp and async: told of every task that is about to be applied."""
        is_keeper = number == 0 and blueprint.run.training.batch_norm == "global"
        self.norms = NormSums() if is_keeper else None
        """Batch norms over whole batches, on the first server."""
        self.pulled_keys = 0
        self.pushed_keys = 0

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Take up the state of a checkpoint, whatever number of servers wrote it."""
        checkpoint = Manifest.read(folder)
        self.discard()
        self._accepted.clear()
        self._all_before = 0
        for table in self.tables:
            table.close()
        self.tables = [
            load_table(
                *(self._blueprint, checkpoint, folder, position),
                cold=self._folder / f"table-{position}",
                server=self._number,
            )
            for position in range(len(self._blueprint.tables))
        ]
        self._due = []
        self.is_settled = True
        if self.keeps_dense:
            values, state = load_vectors(folder, checkpoint)
            residual = state.pop(RESIDUAL, None)
            self.returned = Returned(len(self.values), None if residual is None else residual[self._slice])
            self.values = values[self._slice].copy()
            self._state = (
                {name: vector[self._slice].copy() for name, vector in state.items()}
                if state
                else self._optimizer.first_state(len(self.values))
            )
        if self.norms is not None:
            self.norms.load(read_statistics(folder, checkpoint))
        self._step = StepSums([spec.width for spec in self._blueprint.tables], len(self.values))
        self._dense_steps = checkpoint.dense_steps
        self.version = checkpoint.step

    def save(self, folder: Path, number: int = -1) -> list[Future[Checkpoint]]:
        """Write dense parameters now and begin to write the rows as they are now; futures say when they are there."""
        self.settle()
        if self.keeps_dense:
            keeps = self._blueprint.run.compression.is_wanted
            residual = {RESIDUAL: self.returned.at_checkpoint(number)} if keeps else {}
            save_dense(folder, self._number, self._slice.start, self.values, self._state | residual)
        if self.norms is not None and (running := self.norms.to_save) is not None:
            write_statistics(running, folder)
        return [
            table.save_beside(folder / table_folder(position, self._number))
            for position, table in enumerate(self.tables)
        ]

    @property
    def dense_steps(self) -> int:
        """Return how often the dense parameters were updated."""
        return self._dense_steps

    # -- reading -------------------------------------------------------------------------------------------------------

    def pull(self, tables: Sequence[int], keys: Sequence[Keys], *, dense: bool) -> list[Floats]:
        """Return the rows of keys of each table, then this server's dense parameters where asked for."""
        check_wanted(tables, keys, self._blueprint.tables)
        found = []
        for position, wanted in zip(tables, keys, strict=True):
            if not self.is_settled:
                self._apply_due(position, *self._due[position].take(wanted))
            found.append(self.tables[position].lookup(wanted))
            self.pulled_keys += len(wanted)
        return [*found, self.values] if dense else found

    def refresh(
        self, tables: Sequence[int], keys: Sequence[Keys], *, since: int, dense: bool
    ) -> list[NDArray[np.generic]]:
        """Return, of each table, which keys' rows have changed since so many steps, and those rows; then dense ones."""
        check_wanted(tables, keys, self._blueprint.tables)
        found: list[NDArray[np.generic]] = []
        for position, wanted in zip(tables, keys, strict=True):
            if since >= self.version:
                positions = np.empty(0, dtype=np.int32)
            elif since == self.version - 1 and self._due:
                positions = self._due[position].changed(wanted)
            else:  # more than one step ago, or before the run went back: all may have
                positions = np.arange(len(wanted), dtype=np.int32)
            found += [positions, *self.pull([position], [wanted[positions]], dense=False)]
        return [*found, self.values] if dense else found

    # -- gradients -----------------------------------------------------------------------------------------------------

    def push(
        self, step: int, task: int, worker: str, *, part: int, rows: Sequence[RowGradients],
        dense: Floats | None, last: bool,
    ) -> bool:  # fmt: skip
        """Take in a part of a task's gradients for a step to come; True once the task counts, by its last part.

        A second attempt at a task that counts already changes nothing (and is not refused: its work is done).
        """
        if (step, task) in self._accepted:
            return False
        counts = self._step.push(step, task, worker, part=part, rows=rows, dense=dense, last=last)
        if counts:
            self._accepted.add((step, task))
        return counts

    def check(self, rows: Sequence[RowGradients], dense: Floats | None) -> None:
        """Refuse gradients that are not those of this shard's parameters."""
        check_gradients(rows, dense, self._blueprint.tables, num_dense=len(self.values))

    def counts(self, step: int, task: int) -> bool:
        """Say whether a task counts already."""
        return task < self._all_before or (step, task) in self._accepted

    def norm_square(self) -> float:
        """Return the sum of squares of the step's dense gradient."""
        self.returned.put_into(self._step.dense)
        return self._step.norm_square()

    def step_sums(self) -> WholeStep:
        """Return what the step under way comes to, to be read at once."""
        norms = self.norms.after_commit() if self.norms is not None else None
        return WholeStep(self._step.rows(), self._step.dense if len(self.values) else None, norms)

    def put_step(self, step: WholeStep) -> None:
        """Take up what `step_sums` returned, in the place of what there is."""
        self._step.discard()
        self._step.put(step.rows, step.dense)
        if self.norms is not None and step.norms is not None:
            self.norms.put_next(step.norms)

    def commit(self, *, scale: float, dense_scale: float, factor: float) -> None:
        """Apply the step: dense parameters now, rows when they are asked for or there is time."""
        self.settle()
        for sums in self._due:
            sums.clear()
        self._due = self._step.take_rows(self._due or None)
        self._due_scale, self._due_factor = scale, factor
        self.is_settled = not any(sums.count for sums in self._due)
        if self.keeps_dense and len(self.values):
            self.returned.put_into(self._step.dense)
            self._update_dense(self._step.dense, scale=dense_scale, factor=factor)
            self.returned.applied()
        self._step.start_anew()
        if self.norms is not None:
            self.norms.commit()
        self._accepted.clear()
        self.version += 1

    def settle_some(self, most: int = 4096) -> None:
        """Apply some of the sums that are due."""
        for position, sums in enumerate(self._due):
            keys, values = sums.take_some(most)
            if len(keys):
                self._apply_due(position, keys, values)
                return
        self.is_settled = True

    def settle(self) -> None:
        """Apply all sums that are due."""
        while not self.is_settled:
            self.settle_some(1 << 16)

    def _apply_due(self, position: int, keys: Keys, values: Floats) -> None:
        """Step rows by sums that are due."""
        if len(keys):
            table = self.tables[position]
            np.multiply(values, np.float32(self._due_scale), out=values)  # a copy of the sums
            table.set_rate_factor(self._due_factor)
            table.update_distinct(keys, values)
            self.pushed_keys += len(keys)

    def apply(
        self, task: int, worker: str, *, part: int, rows: Sequence[RowGradients], dense: Floats | None,
        last: bool, scale: float, factor: float,
    ) -> bool:  # fmt: skip
        """Take in a part of a task's gradients and, with the last, apply them at once (ssp and async)."""
        if self.counts(0, task):
            return False
        gradients = self._attempts.add((0, task, worker), part, rows if last else copied(rows))
        if not last:
            return False
        if self.before_apply is not None:
            self.before_apply(task, gradients.rows, dense, scale=scale, factor=factor)
        for position, table in enumerate(self.tables):
            mine = [(keys, values) for of_table, keys, values in gradients.rows if of_table == position]
            if mine:
                self.pushed_keys += step_rows(table, mine, scale=scale, factor=factor)
        if dense is not None and self.keeps_dense:
            if self.returned.is_any:
                dense = dense.copy()  # a message's is not ours to change
                self.returned.put_into(dense)
            self._update_dense(dense, scale=scale, factor=factor)
            self.returned.applied()
        self._accepted.add((0, task))
        self._attempts.forget_task(0, task)
        self.version += 1
        return True

    def _update_dense(self, gradients: Floats, *, scale: float, factor: float) -> None:
        """Step the dense parameters by their gradients times `scale`."""
        self._dense_steps += 1
        parts, clip_value = (self.values, gradients, self._state), self._blueprint.run.optimizer.clip_value
        self._optimizer.step(*parts, step_number=self._dense_steps, scale=scale, factor=factor, clip_value=clip_value)

    def discard(self) -> None:
        """Throw away gradients that were not committed; in ssp and async what is applied stays applied."""
        self._step.discard()
        self._attempts.clear()
        self.returned.undone()
        if self.norms is not None:
            self.norms.discard()
        if self._blueprint.run.training.mode == "sync":
            self._accepted.clear()

    def forget_tasks(self, *, below: int) -> None:
        """Forget which tasks below a number were applied one by one: all were, and whoever is late is told so."""
        self._all_before = max(self._all_before, below)
        self._accepted = {(step, task) for step, task in self._accepted if task >= self._all_before}

    def close(self) -> None:
        """Give back memory and files."""
        for table in self.tables:
            table.close()
