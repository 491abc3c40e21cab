"""What one server keeps: its rows of every table and its slice of the dense parameters, and how steps change them.

In `sync`, gradients of rows are summed as they arrive. When the step is committed, the rows that workers ask for are
updated first and the others when there is time: nobody can see a row that is not up to date.

No sockets and no clock: `loop` brings messages here. One thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Checkpoint, Table, Whereabouts, make_row_optimizer
from dovetail.embedding.checkpoints.loading import saved_private
from dovetail.embedding.row_optimizer import RowOptimizer
from dovetail.embedding.store import rows_that_fit
from dovetail.runtime.blueprint import Blueprint, table_seed
from dovetail.runtime.checkpoint import (
    RESIDUAL,
    RunManifest,
    load_vectors,
    read_statistics,
    save_dense,
    table_folder,
    write_statistics,
)
from dovetail.runtime.dense.buckets import bucket_size, is_bucketed, stepper
from dovetail.runtime.dense.coding import exact_places
from dovetail.runtime.dense.kernels import sum_of_squares
from dovetail.runtime.dense.optimizer import optimizer_of
from dovetail.runtime.noise import dense_noise, going_on, owed_before, owed_by, private_rows
from dovetail.runtime.server.gradients import (
    Attempts,
    BeforeApply,
    DeferredUpdates,
    Floats,
    Keys,
    RowGradients,
    StepSums,
    TaskPart,
    WholeStep,
    copied,
)
from dovetail.runtime.server.key_set_cache import KeySet, KeySetCache, PullName
from dovetail.runtime.server.norm_sums import NormSums
from dovetail.runtime.server.requests import check_gradients, check_wanted
from dovetail.transport import Sendable, Unwritten

Vector = NDArray[np.float32]


class ErrorFeedbackResidual:
    """What workers kept back of dense gradients, and servers have: of those who left, and of a checkpoint.

    It is added to the gradient of the next step. Of workers that go on, copies are kept for the checkpoint that is
    about to be written: loaded, they are what those workers had kept back, who then begin with nothing.
    """

    def __init__(self, size: int, waiting: Vector | None = None) -> None:
        """Begin with what a checkpoint has."""
        self.waiting: Vector = np.zeros(size, dtype=np.float32) if waiting is None else waiting.copy()
        self.is_any = bool(self.waiting.any())
        self._number = -1
        self._copies: dict[str, Vector] = {}
        """For the checkpoint of that number, by worker: one may tell twice."""

    def add(self, kept: Vector, *, worker: str, checkpoint: int) -> None:
        """Take in what a worker keeps back: a copy for the checkpoint of a number; with -1, for good."""
        if checkpoint < 0:
            self.waiting += kept
            self.is_any = True
            return
        if self._number != checkpoint:
            self._number, self._copies = checkpoint, {}
        self._copies[worker] = kept.copy()

    def with_gradient(self, gradient: Vector) -> Vector:
        """Return a gradient with what waits."""
        return gradient + self.waiting if self.is_any else gradient

    def put_into(self, gradient: Vector) -> None:
        """Add what waits to the gradient of a step that counts, which it is in then."""
        if self.is_any:
            gradient += self.waiting
            self.waiting = np.zeros_like(self.waiting)
            self.is_any = False

    def at_checkpoint(self, number: int) -> Vector:
        """Return what a checkpoint of a number holds."""
        total = self.waiting.copy()
        if self._number == number:
            for kept in self._copies.values():
                total += kept
        return total


class RowRead:
    """Writes rows as they are now.

    Where it is asked again to write to the same place, one step later, the place has all rows that the step has not
    changed: only the others are written.
    """

    def __init__(
        self, table: Table, due: DeferredUpdates, position: int, keys: Keys, kept: list[KeySet] | None
    ) -> None:
        """Read keys of the table at a position; what is `kept` of the pull gets them, and where their rows lie."""
        self._table, self._due, self._position, self._keys, self._kept = table, due, position, keys, kept
        self._where: Whereabouts | None = None
        self._written_to, self._version = 0, -1

    def write(self, out: Floats, version: int) -> int:
        """Write the rows as they are after so many steps; return how many were looked up."""
        address = out.__array_interface__["data"][0]
        is_first = self._version < 0
        if address == self._written_to and (version == self._version or self._write_changed(out, version)):
            count = 0
        else:
            self._due.apply_of(self._position, self._keys)
            _, self._where = self._table.lookup_distinct(self._keys, out)
            count = len(self._keys)
        self._written_to, self._version = address, version
        if is_first and self._kept is not None:
            self._kept.append(KeySet(self._position, self._keys.copy(), self._where))
        return count

    def _write_changed(self, out: Floats, version: int) -> bool:
        """Write the rows that the last step has changed; False where it is not known which, or where they are."""
        if version != self._version + 1 or self._where is None or self._table.owed is not None:
            return False
        changed = self._due.apply_changed(self._position, self._keys)
        return changed is not None and self._table.read_again(self._where, changed, out)


def apply_rows(
    tables: Sequence[Table],
    rows: Sequence[RowGradients],
    wheres: Sequence[Whereabouts | None],
    *,
    step: int,
    scale: float,
    factor: float,
) -> int:
    """Step rows by their gradients times `scale`; a row that is in several parts gets one step. Return how many rows.

    `wheres` says of `rows` where they were when they were pulled; it may be empty.
    """
    known = wheres or [None] * len(rows)
    for position, table in enumerate(tables):
        mine = [place for place, (of_table, _, _) in enumerate(rows) if of_table == position]
        if not mine:
            continue
        table.begin_step(step, factor=factor)
        if len(mine) == 1:
            _, keys, values = rows[mine[0]]
            values = values.view()
            values.flags.writeable = False  # they are the message's, not ours to scale where they are
            table.update_distinct(keys, values, scale=scale, where=known[mine[0]])
        else:
            scaled = [rows[place][2] * np.float32(scale) for place in mine]
            table.update(np.concatenate([rows[place][1] for place in mine]), np.concatenate(scaled))
    return sum(len(keys) for _, keys, _ in rows)


MOST_THREADS = 8
"""Where nobody says: more would wait for memory."""


def threads_of(blueprint: Blueprint) -> int:
    """Return `servers.threads`, or what this machine's cores leave to each server beside the workers that it may run.

    A worker is taken to be here, with all its threads; a worker on a GPU as well, as it feeds it.
    """
    servers = blueprint.run.servers
    if servers.threads is not None:
        return servers.threads
    if servers.cores is not None:
        return max(1, min(MOST_THREADS, int(servers.cores)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    of_workers = sum(worker.count * worker.threads for worker in blueprint.run.workers)
    return max(1, min(MOST_THREADS, (cores - of_workers) // servers.count))


def load_table(
    blueprint: Blueprint,
    checkpoint: RunManifest,
    folder: Path,
    position: int,
    *,
    cold: Path,
    server: int = 0,
    device: str = "cuda",
    device_bytes: int | None = None,
    threads: int = 1,
    noise_key: bytes = b"",
) -> Table:
    """Return one table with a server's rows, as they are in the checkpoint in `folder`; cold rows go into `cold`.

    With `device_bytes`, hot rows lie on a device. Rows of a private run owe noise of a key.
    """
    spec = blueprint.tables[position]
    budget = blueprint.run.servers.host_bytes // max(1, len(blueprint.tables))
    settings = dict(blueprint.row_optimizer)
    optimizer: RowOptimizer = make_row_optimizer(str(settings.pop("name")), **settings)
    parts = [checkpoint.table_at(folder, position, old) for old in range(checkpoint.num_servers)]
    owed = before = None
    if (private := private_rows(blueprint)) is not None:
        saved = saved_private(parts) if parts else None
        optimizer = now = going_on(saved, private)
        owed, before = owed_by(now, noise_key, position), owed_before(saved, now, noise_key, position)
    place: dict[str, Any] = {
        "host_bytes": budget,
        "folder": cold,
        "shard": server,
        "num_shards": blueprint.num_servers,
        "device": device,
        "device_bytes": device_bytes,
        "threads": threads,
        "owed": owed,
        # An index that grows under way has training wait; one for more rows than fit would leave no room for them.
        "expected_rows": min(
            -(-spec.num_rows // blueprint.num_servers),
            rows_that_fit(budget, spec.width + optimizer.state_width(spec.width)),
        ),
    }
    if not parts:
        seed = table_seed(blueprint.values_seed, position)
        table = Table(width=spec.width, optimizer=optimizer, seed=seed, scale=spec.scale, **place)
    else:
        table = Table.load(parts, before=before, optimizer=optimizer, **place)
    if spec.max_norm is not None:
        table.limit_norms(spec.max_norm, norm_type=spec.norm_type)
    return table


def load_tables(
    blueprint: Blueprint,
    checkpoint: RunManifest,
    folder: Path,
    *,
    cold: Path,
    server: int,
    threads: int,
    noise_key: bytes = b"",
) -> list[Table]:
    """Return all tables of a server."""
    return [
        load_table(
            blueprint,
            checkpoint,
            folder,
            position,
            cold=cold / f"table-{position}",
            server=server,
            threads=threads,
            noise_key=noise_key,
        )
        for position in range(len(blueprint.tables))
    ]


AfterSlice = Callable[[int], None]


class Shard:
    """The parameters of one server, and the gradients that wait for the step to be committed."""

    def __init__(self, blueprint: Blueprint, number: int, folder: Path, *, noise_key: bytes = b"") -> None:
        """Make an empty shard; `load` fills it. Cold rows go into `folder`; a private run has a key of noise."""
        self._blueprint, self._number, self._folder = blueprint, number, folder
        self._noise_key, self._noise = noise_key, dense_noise(blueprint, noise_key)
        self._slice = blueprint.dense_slice(number)
        self._optimizer = optimizer_of(blueprint, self._slice)
        size = self._slice.stop - self._slice.start
        self.keeps_dense, self.sliced = blueprint.run.training.dense == "ps", is_bucketed(blueprint)
        self.values = np.zeros(size if self.keeps_dense else 0, dtype=np.float32)
        self._state: dict[str, Floats] = {}
        self.exact = exact_places(blueprint.dense, self._slice)
        """Where in this part dense numbers are that no codec touches."""
        self.returned = ErrorFeedbackResidual(len(self.values))
        self.tables: list[Table] = []
        self.version = -1
        self._dense_steps = self._all_before = 0
        """In ssp and async: tasks below this number are applied."""
        self._accepted: set[tuple[int, int]] = set()
        """(step, task) in sync, (0, task) else: what counts already."""
        self._attempts = Attempts()
        """In ssp and async: tasks of which parts have come."""
        self._step = StepSums((), 0)
        """In sync: the gradients of the step under way."""
        self._threads = threads_of(blueprint)
        self._due = DeferredUpdates(self._threads)
        """Sums of the step that was committed last, those that are not applied yet."""
        self.kept = KeySetCache()
        self.norms = NormSums() if number == 0 and blueprint.run.training.batch_norm == "global" else None
        """Batch norms over whole batches, on the first server."""
        self.pulled_keys = self._applied_keys = 0

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> None:
        """Take up the state of a checkpoint, whatever number of servers wrote it."""
        checkpoint = RunManifest.read(folder)
        self.discard()
        self._accepted.clear()
        self._all_before = 0
        for table in self.tables:
            table.close()
        self.tables = load_tables(
            self._blueprint,
            checkpoint,
            folder,
            cold=self._folder,
            server=self._number,
            threads=self._threads,
            noise_key=self._noise_key,
        )
        self._due.forget()
        if self.keeps_dense:
            values, state = load_vectors(folder, checkpoint)
            residual = state.pop(RESIDUAL, None)
            self.returned = ErrorFeedbackResidual(len(self.values), None if residual is None else residual[self._slice])
            self.values = values[self._slice].copy()
            kept = {name: vector[self._slice].copy() for name, vector in state.items()}
            self._state = kept or self._optimizer.first_state(len(self.values))
        if self.norms is not None:
            self.norms.load(read_statistics(folder, checkpoint))
        self._step = StepSums([spec.width for spec in self._blueprint.tables], len(self.values), sliced=self.sliced)
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
        found = self.answer(tables, keys, dense=dense)
        return [each.written() if isinstance(each, Unwritten) else each for each in found]

    def answer(
        self, tables: Sequence[int], keys: Sequence[Keys], *, dense: bool, keep: PullName | None = None
    ) -> list[Sendable]:
        """Return the same, the rows written by whoever sends them: straight to where they go.

        With a name to `keep`, what is asked for is remembered.
        """
        check_wanted(tables, keys, self._blueprint.tables)
        kept = None if keep is None else self.kept.begin(keep)
        found: list[Sendable] = []
        for position, wanted in zip(tables, keys, strict=True):
            shape = (len(wanted), self._blueprint.tables[position].width)
            read = RowRead(self.tables[position], self._due, position, wanted, kept)
            found.append(Unwritten(shape, self.values.dtype, partial(self._write, read)))
        return [*found, self.values] if dense else found

    def _write(self, read: RowRead, out: Floats) -> None:
        """Write rows as they are after the last step."""
        self.pulled_keys += read.write(out, self.version)

    def refresh(
        self, tables: Sequence[int], keys: Sequence[Keys], *, since: int, dense: bool
    ) -> list[NDArray[np.generic]]:
        """Return, of each table, which keys' rows have changed since so many steps, and those rows; then dense ones."""
        check_wanted(tables, keys, self._blueprint.tables)
        found: list[NDArray[np.generic]] = []
        for position, wanted in zip(tables, keys, strict=True):
            positions = self.changed_since(position, wanted, since)
            found += [positions, *self.pull([position], [wanted[positions]], dense=False)]
        return [*found, self.values] if dense else found

    def changed_since(self, position: int, keys: Keys, since: int) -> NDArray[np.int32]:
        """Return which of a table's keys have rows that may have changed since so many steps: with noise, all."""
        if self.tables[position].owed is not None and since != self.version:
            return np.arange(len(keys), dtype=np.int32)
        return self._due.changed_since(position, keys, self.version - since)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def push(self, part: TaskPart) -> bool:
        """Take in a part of a task's gradients for a step to come; True once the task counts, by its last part.

        A second attempt at a task that counts already changes nothing (and is not refused: its work is done).
        """
        if (part.step, part.task) in self._accepted:
            return False
        counts = self._step.push(part)
        if counts:
            self._accepted.add((part.step, part.task))
        return counts

    def check(self, part: TaskPart) -> None:
        """Refuse gradients that are not those of this shard's parameters."""
        check_gradients(part, self._blueprint.tables, num_dense=len(self.values))

    def counts(self, step: int, task: int) -> bool:
        """Say whether a task counts already."""
        return task < self._all_before or (step, task) in self._accepted

    def norm_square(self) -> float:
        """Return the sum of squares of the step's dense gradient."""
        if not self.returned.is_any:
            return self._step.dense_square()
        return float(sum_of_squares(self.returned.with_gradient(self._step.dense)))

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

    def commit(self, *, scale: float, dense_scale: float, factor: float, after_slice: AfterSlice | None = None) -> None:
        """Apply the step: dense parameters now, rows when they are asked for or there is time.

        Where there are slices, `after_slice` is told up to where the dense parameters have the step.
        """
        self.settle()
        sums = self._step.take_rows(self._due.spare())
        self._due.begin(self.tables, sums, step=self.version + 1, scale=scale, factor=factor)
        self.version += 1
        for table in self.tables:
            table.has_had(self.version)
        if self._noise is not None:
            self._noise.add(self._step.dense, step=self.version, first=self._slice.start)
        if self.keeps_dense and len(self.values):
            self.returned.put_into(self._step.dense)
            self._update_dense(self._step.dense, scale=dense_scale, factor=factor, after_slice=after_slice)
        self._step.start_anew()
        if self.norms is not None:
            self.norms.commit()
        self._accepted.clear()
        self.kept.forget_before(self.version)

    @property
    def is_settled(self) -> bool:
        """Say whether all sums of the last step are applied."""
        return self._due.is_settled

    def settle_some(self, most: int = 4096) -> None:
        """Apply some of the sums that are due."""
        self._due.settle_some(most)

    def settle(self) -> None:
        """Apply all sums that are due."""
        self._due.settle()

    @property
    def pushed_keys(self) -> int:
        """Return how many rows were stepped, each as often as it was."""
        return self._applied_keys + self._due.num_applied

    def apply(self, part: TaskPart, *, scale: float, factor: float, before_apply: BeforeApply | None = None) -> bool:
        """Take in a part of a task's gradients and, with the last, apply them at once (ssp and async).

        Whoever keeps what is applied is told `before_apply`.
        """
        task, dense = part.task, part.dense
        if self.counts(0, task):
            return False
        key = (0, task, part.worker)
        gradients = self._attempts.add(key, part.part, part.rows if part.last else copied(part.rows))
        if not part.last:
            return False
        if before_apply is not None:
            before_apply(task, gradients.rows, dense, scale=scale, factor=factor)
        at_once = part.wheres if part.part == 0 else ()
        self._applied_keys += apply_rows(
            self.tables, gradients.rows, at_once, step=self.version + 1, scale=scale, factor=factor
        )
        if dense is not None and self.keeps_dense:
            if self.returned.is_any:
                dense = dense.copy()  # a message's is not ours to change
                self.returned.put_into(dense)
            self._update_dense(dense, scale=scale, factor=factor)
        self._accepted.add((0, task))
        self._attempts.forget_task(0, task)
        self.version += 1
        return True

    def _update_dense(
        self, gradients: Floats, *, scale: float, factor: float, after_slice: AfterSlice | None = None
    ) -> None:
        """Step the dense parameters by their gradients times `scale`."""
        self._dense_steps += 1
        parts, clip_value = (self.values, gradients, self._state), self._blueprint.run.optimizer.clip_value
        step = stepper(self._optimizer, bucket_size(self._blueprint), after_slice)
        step(*parts, step_number=self._dense_steps, scale=scale, factor=factor, clip_value=clip_value)

    def discard(self) -> None:
        """Throw away gradients that were not committed; in ssp and async what is applied stays applied."""
        self._step.discard()
        self._attempts.clear()
        self.kept.clear()
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
