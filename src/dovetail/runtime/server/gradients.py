"""Gradients at a server: attempts at tasks, the sums of the step under way, and deferred updates of the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding import Table, Whereabouts
from dovetail.embedding.key_numbers import head_of, number_keys
from dovetail.runtime.dense.kernels import add_into, sum_of_squares
from dovetail.runtime.errors import TrainingError

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]
RowGradients = tuple[int, Keys, Floats]
"""The number of a table, keys, and the gradient of each key's row."""
Slice = tuple[int, Floats]
"""Where numbers of the dense gradient begin, and those."""
AttemptKey = tuple[int, int, str]
"""Step (0 in ssp and async), task, and whose attempt it is."""


@dataclass(frozen=True, slots=True)
class TaskPart:
    """A part of the gradients of an attempt at a task, as a worker pushes it; in ssp and async its step is 0."""

    step: int
    task: int
    worker: str
    part: int = 0
    rows: Sequence[RowGradients] = ()
    dense: Floats | None = None
    last: bool = True
    wheres: Sequence[Whereabouts | None] = ()
    """Where the tables had `rows` when they were pulled; empty where that is not known."""
    first: int = -1
    """Where in this server's part `dense` begins, of which it is a slice; -1: it is whole."""


class BeforeApply(Protocol):
    """Whoever keeps what is applied."""

    def __call__(
        self, task: int, rows: Sequence[RowGradients], dense: Floats | None, *, scale: float, factor: float
    ) -> None:
        """Take in the gradients of a task."""
        ...


@dataclass(slots=True)
class TaskGradients:
    """Gradients of one attempt at a task."""

    rows: list[RowGradients] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    """Of the dense gradient, where that comes in slices."""
    num_parts: int = 0


class Attempts:
    """The attempts that are under way."""

    def __init__(self) -> None:
        self._open: dict[AttemptKey, TaskGradients] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[tuple[AttemptKey, TaskGradients]]:
        return iter(self._open.items())

    def add(
        self, key: AttemptKey, part: int, rows: Sequence[RowGradients], slices: Sequence[Slice] = ()
    ) -> TaskGradients:
        """Add a part; with its first part an attempt begins anew. Return what there is of it."""
        if part == 0:
            self._open[key] = TaskGradients()
        gradients = self._open.get(key)
        if gradients is None or gradients.num_parts != part:
            raise TrainingError(
                f"part {part} of task {key[1]} of {key[2]} came without those before", hint="a bug: report it"
            )
        gradients.num_parts += 1
        gradients.rows.extend(rows)
        gradients.slices.extend(slices)
        return gradients

    def forget_task(self, step: int, task: int) -> None:
        """Forget all attempts at a task: one of them counts."""
        for key in [key for key in self._open if key[:2] == (step, task)]:
            del self._open[key]

    def clear(self) -> None:
        """Forget all."""
        self._open.clear()


def copied(rows: Sequence[RowGradients]) -> list[RowGradients]:
    """Return gradients in memory of their own: what a message brought is void once it is answered."""
    return [(position, keys.copy(), values.copy()) for position, keys, values in rows]


FIRST_ROWS = 1024
NO_SLOTS = np.empty(0, dtype=np.int32)


class Taken(NamedTuple):
    """Sums that are to be applied, which whoever takes them may change, and where the table has their rows."""

    keys: Keys
    values: Floats
    where: Whereabouts | None


class GradientSums:
    """One sum a key; which of them were taken already."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.count = 0
        self.keys = np.empty(FIRST_ROWS, dtype=np.int64)
        self.sums = np.empty((FIRST_ROWS, width), dtype=np.float32)
        self.taken = np.zeros(FIRST_ROWS, dtype=np.bool_)
        self._slots = np.empty(FIRST_ROWS, dtype=np.int32)
        self._as_of: tuple[int, int] | None = None
        """When the rows of all sums were where `_slots` says; None: there are sums of which nobody knows that."""
        self._heads = np.full(4 * FIRST_ROWS, -1, dtype=np.int32)
        self._cursor = 0

    def add(self, keys: Keys, values: Floats, where: Whereabouts | None = None) -> None:
        """Add gradients to the sums of their keys; `where` says where the table has the rows."""
        if not len(keys):
            return
        if self.count + len(keys) > len(self.keys):
            self._grow(self.count + len(keys))
        as_of = None if where is None else where.as_of
        self._as_of = as_of if not self.count or self._as_of == as_of else None
        slots = NO_SLOTS if where is None else where.slots
        self.count = add_rows(keys, values, slots, self._heads, self.keys, self.sums, self._slots, self.count)

    def take(self, keys: Keys) -> Taken:
        """Return those of `keys`, which are distinct, whose sums were not taken yet, with their sums; take them."""
        places = np.empty(len(keys), dtype=np.int32)
        count = find_untaken(keys, self._heads, self.keys, self.taken, places)
        return self._at(places[:count])

    def _at(self, places: NDArray[np.int32] | slice) -> Taken:
        if isinstance(places, slice):
            keys, sums, slots = self.keys[places], self.sums[places], self._slots[places]
        else:
            count = len(places)
            keys, slots = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
            sums = np.empty((count, self._width), dtype=np.float32)
            pick(places, self.keys, self.sums, self._slots, keys, sums, slots)
        return Taken(keys, sums, None if self._as_of is None else Whereabouts(slots, self._as_of))

    def changed(self, keys: Keys) -> NDArray[np.int32]:
        """Return the positions of those of `keys` that have sums, taken or not."""
        positions = np.empty(len(keys), dtype=np.int32)
        return positions[: find_known(keys, self._heads, self.keys, positions)]

    def take_changed(self, keys: Keys) -> tuple[NDArray[np.int32], Taken]:
        """Return what `changed` does, and take those of them that were not taken yet."""
        positions, places = np.empty((2, len(keys)), dtype=np.int32)
        known, untaken = find_changed(keys, self._heads, self.keys, self.taken, positions, places)
        return positions[:known], self._at(places[:untaken])

    def take_some(self, most: int) -> Taken:
        """Return up to `most` of the sums that were not taken yet; take them. None are left where none come."""
        places = np.empty(min(most, self.count - self._cursor), dtype=np.int32)
        begin = self._cursor
        count, self._cursor = next_untaken(begin, self.count, self.taken, places)
        whole = count == self._cursor - begin  # none between was taken: no copy
        return self._at(slice(begin, self._cursor) if whole else places[:count])

    def clear(self) -> None:
        """Start again without keys."""
        self.taken[: self.count] = False
        self._heads[:] = -1
        self.count = self._cursor = 0

    def _grow(self, wanted: int) -> None:
        size = 1 << (wanted - 1).bit_length()
        keys, sums = np.empty(size, dtype=np.int64), np.empty((size, self._width), dtype=np.float32)
        keys[: self.count], sums[: self.count] = self.keys[: self.count], self.sums[: self.count]
        self.keys, self.sums = keys, sums
        slots = np.empty(size, dtype=np.int32)
        slots[: self.count] = self._slots[: self.count]
        self._slots = slots
        self.taken = np.concatenate([self.taken, np.zeros(size - len(self.taken), dtype=np.bool_)])
        self._heads = np.full(4 * size, -1, dtype=np.int32)
        number_keys(self.keys[: self.count], self._heads, self.keys, 0, np.empty(self.count, dtype=np.int32))


@njit(cache=True, nogil=True)
def add_rows(keys, values, slots, heads, known, sums, known_slots, count):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add rows to the sums of their keys, with their slots where there are any; return how many keys there are then."""
    width = sums.shape[1]
    for i in range(len(keys)):
        key = keys[i]
        at = head_of(key, heads, known)
        place = heads[at]
        if place < 0:
            heads[at] = count
            known[count] = key
            if len(slots):
                known_slots[count] = slots[i]
            for j in range(width):
                sums[count, j] = values[i, j]
            count += 1
        else:
            for j in range(width):
                sums[place, j] += values[i, j]
    return count


@njit(cache=True, nogil=True)
def find_untaken(keys, heads, known, taken, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write where the keys lie that were not taken yet, and take them; return how many."""
    count = 0
    for i in range(len(keys)):
        place = heads[head_of(keys[i], heads, known)]
        if place >= 0 and not taken[place]:
            taken[place] = True
            places[count] = place
            count += 1
    return count


@njit(cache=True, nogil=True)
def find_known(keys, heads, known, positions):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which of the keys have sums; return how many."""
    count = 0
    for i in range(len(keys)):
        if heads[head_of(keys[i], heads, known)] >= 0:
            positions[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def find_changed(keys, heads, known, taken, positions, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write which of the keys have sums, and where those lie that were not taken yet, which are then; return both."""
    count = untaken = 0
    for i in range(len(keys)):
        place = heads[head_of(keys[i], heads, known)]
        if place >= 0:
            positions[count] = i
            count += 1
            if not taken[place]:
                taken[place] = True
                places[untaken] = place
                untaken += 1
    return count, untaken


@njit(cache=True, nogil=True)
def pick(places, known, sums, slots, picked_keys, picked_sums, picked_slots):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy what lies at some places."""
    width = sums.shape[1]
    for i in range(len(places)):
        place = places[i]
        picked_keys[i] = known[place]
        picked_slots[i] = slots[place]
        for j in range(width):
            picked_sums[i, j] = sums[place, j]


@njit(cache=True, nogil=True)
def next_untaken(begin, end, taken, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write places from `begin` on that were not taken, and take them; return how many, and where to go on."""
    count = 0
    place = begin
    while place < end and count < len(places):
        if not taken[place]:
            taken[place] = True
            places[count] = place
            count += 1
        place += 1
    return count, place


@dataclass(frozen=True, slots=True)
class WholeStep:
    """What all gradients of a step come to: the sums of rows, by table, that of the dense gradient, where there is any.

    And the running statistics of norms as they are once the step counts, on the server that keeps them.
    """

    rows: Sequence[RowGradients]
    dense: Floats | None
    norms: Floats | None = None


class StepSums:
    """The sums of rows by table, and that of the dense gradient."""

    def __init__(self, widths: Sequence[int], dense_size: int, *, sliced: bool = False) -> None:
        """Start at zero; dense gradients that come `sliced` are kept until the step is committed, as those of rows."""
        self._sliced = sliced
        self._sums = [GradientSums(width) for width in widths]
        self._spare = [GradientSums(width) for width in widths]
        self.dense = np.zeros(dense_size, dtype=np.float32)
        self._dense_square: float | None = None
        self._attempts = Attempts()
        self._counting: dict[int, str] = {}
        """Whose attempt at each task is in the sums."""
        self._kept: dict[int, TaskGradients] = {}
        """The gradients of tasks that are whole, until the step is committed."""

    def push(self, part: TaskPart) -> bool:
        """Take in a part of an attempt at a task that is not whole; True where that makes it whole."""
        task, worker = part.task, part.worker
        key, dense = (part.step, task, worker), part.dense
        if part.first >= 0 and not self._sliced:
            raise TrainingError(f"{worker} pushed a slice of what goes in one piece", hint="a bug: report it")
        again = part.part == 0 and key in self._attempts
        copies = copied(part.rows)
        slices = [(max(0, part.first), dense.copy())] if dense is not None and self._sliced else []
        gradients = self._attempts.add(key, part.part, copies, slices)
        if part.last and self._sliced and sum(len(each) for _, each in gradients.slices) != len(self.dense):
            raise TrainingError(f"slices of task {task} of {worker} are not all of it", hint="a bug: report it")
        if self._counting.setdefault(task, worker) == worker and not again:
            self._add_up(copies, part.wheres)
            self._add_slices(slices)
        if not part.last:
            if again:
                self._add_up_anew()
            return False
        if dense is not None and not self._sliced:
            self._add_dense(dense)
        self._kept[task] = gradients
        changed = again or self._counting[task] != worker
        self._counting[task] = worker
        self._attempts.forget_task(part.step, task)
        if changed:
            self._add_up_anew()
        return True

    def _add_slices(self, slices: Sequence[Slice]) -> None:
        for first, dense in slices:
            add_into(self.dense[first : first + len(dense)], dense)
            self._dense_square = None

    def _add_dense(self, dense: Floats) -> None:
        add_into(self.dense, dense)
        self._dense_square = None

    def dense_square(self) -> float:
        """Return the sum of squares of the dense gradient, taken once while that does not change."""
        if self._dense_square is None:
            self._dense_square = float(sum_of_squares(self.dense))
        return self._dense_square

    def _add_up(self, rows: Sequence[RowGradients], wheres: Sequence[Whereabouts | None] = ()) -> None:
        """Add gradients to the sums of the step."""
        for (position, keys, values), where in zip(rows, wheres or [None] * len(rows), strict=True):
            self._sums[position].add(keys, values, where)

    def _add_up_anew(self) -> None:
        """Take the sums again: another attempt at a task than the one in them is the one that counts."""
        for sums in self._sums:
            sums.clear()
        if self._sliced:
            self.dense[:] = 0
            self._dense_square = None
        under_way = [gradients for (_, task, worker), gradients in self._attempts if self._counting.get(task) == worker]
        for gradients in (*self._kept.values(), *under_way):
            self._add_up(gradients.rows)
            self._add_slices(gradients.slices)

    def rows(self) -> list[RowGradients]:
        """Return the sums of rows, by table, those of attempts that came to nothing left out; to be read at once."""
        self._leave_out_attempts()
        return [
            (position, sums.keys[: sums.count], sums.sums[: sums.count]) for position, sums in enumerate(self._sums)
        ]

    def put(self, rows: Sequence[RowGradients], dense: Floats | None) -> None:
        """Add sums of a whole step."""
        self._add_up(rows)
        if dense is not None:
            self._add_dense(dense)

    def take_rows(self, applied: list[GradientSums] | None) -> list[GradientSums]:
        """Return the sums of rows, those of attempts that came to nothing left out; `applied` are used for the next."""
        self._leave_out_attempts()
        taken, self._sums = self._sums, applied or self._spare
        return taken

    def _leave_out_attempts(self) -> None:
        """Take attempts out of the sums that came to nothing: the step is whole without."""
        if self._attempts:
            self._attempts.clear()
            self._add_up_anew()

    def start_anew(self) -> None:
        """Forget the tasks of the step, and the dense gradient."""
        self._attempts.clear()
        self._counting.clear()
        self._kept.clear()
        self.dense[:] = 0
        self._dense_square = None

    def discard(self) -> None:
        """Forget everything."""
        self.start_anew()
        for sums in self._sums:
            sums.clear()


class DeferredUpdates:
    """What is not applied yet; nobody can see a row that is not up to date."""

    def __init__(self, threads: int) -> None:
        """Start with nothing due; so many threads of a table share what is applied at once."""
        self._threads = threads
        self._tables: Sequence[Table] = ()
        self._sums: list[GradientSums] = []
        self._step, self._scale, self._factor = 1, 1.0, 1.0
        self.is_settled = True
        self.num_applied = 0

    def spare(self) -> list[GradientSums] | None:
        """Return sums that are all applied, empty, to be used again; None where there were none."""
        for sums in self._sums:
            sums.clear()
        return self._sums or None

    def begin(
        self, tables: Sequence[Table], sums: list[GradientSums], *, step: int, scale: float, factor: float
    ) -> None:
        """Take the sums of a step, counted from 1: each times `scale`, with `factor` times the learning rate."""
        self._tables, self._sums, self._step, self._scale, self._factor = tables, sums, step, scale, factor
        self.is_settled = not any(each.count for each in sums)

    def forget(self) -> None:
        """Drop everything: the tables are others now."""
        self._sums, self.is_settled = [], True

    def changed_since(self, position: int, keys: Keys, num_steps: int) -> NDArray[np.int32]:
        """Return which of a table's keys the last so many steps may have changed: all, where that is not known."""
        if num_steps <= 0:
            return np.empty(0, dtype=np.int32)
        if num_steps == 1 and self._sums:
            return self._sums[position].changed(keys)
        return np.arange(len(keys), dtype=np.int32)  # more than one step ago, or before the run went back

    def apply_of(self, position: int, keys: Keys) -> None:
        """Bring the rows of some keys up to date."""
        if not self.is_settled:
            self._apply(position, self._sums[position].take(keys))

    def apply_changed(self, position: int, keys: Keys) -> NDArray[np.int32] | None:
        """Bring the rows up to date that the step has changed; return which of the keys' they are, as `changed`."""
        if not self._sums:
            return None
        positions, due = self._sums[position].take_changed(keys)
        self._apply(position, due)
        return positions

    def settle_some(self, most: int) -> None:
        """Apply some of what is due, so many rows a thread."""
        for position, sums in enumerate(self._sums):
            taken = sums.take_some(most * self._threads)
            if len(taken.keys):
                self._apply(position, taken)
                return
        self.is_settled = True

    def settle(self) -> None:
        """Apply all of it."""
        while not self.is_settled:
            self.settle_some(1 << 16)

    def _apply(self, position: int, due: Taken) -> None:
        if len(due.keys):
            table = self._tables[position]
            table.begin_step(self._step, factor=self._factor)  # whenever it is applied
            table.update_distinct(due.keys, due.values, scale=self._scale, where=due.where)
            self.num_applied += len(due.keys)
