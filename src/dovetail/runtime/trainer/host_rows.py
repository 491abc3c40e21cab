"""Rows of tables in this process's memory: what layers get of a step, and gradients summed by row for its end.

A layer's output is a leaf: it is written by one kernel from the step's distinct rows, and its gradient is added to
their sums by another, in the order of the batch. Autograd sees no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.embedding import Table, Whereabouts
from dovetail.embedding.key_numbers import number_batches, number_keys
from dovetail.runtime.worker.rows.batch_rows import BatchRows, Check, pool, spread

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]
NO_KEYS: Keys = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class AskedLookUp:
    """A look-up that a batch alone decides: its keys, and the number of each among the distinct ones of its table."""

    table: int
    keys: Keys
    numbers: NDArray[np.int32]
    offsets: Keys | None = None
    """Where its bags begin, of a layer whose forward pass is known; None where each key is one."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStep:
    """A batch in the parts that are computed one after the other, and what they will look up."""

    parts: tuple[tuple[Batch, list[AskedLookUp]], ...]
    keys: tuple[Keys, ...]
    """The distinct keys of all look-ups, by table."""
    where: tuple[Whereabouts | None, ...]
    """Where their rows lay when the step was prepared."""


class DistinctKeys:
    """Numbers the keys of a step, table by table, as look-ups of it are found."""

    def __init__(self, num_tables: int) -> None:
        self._found: list[list[AskedLookUp]] = [[] for _ in range(num_tables)]

    def add(self, table: int, keys: Keys) -> AskedLookUp:
        """Return a look-up; its numbers are there once `numbered` was called."""
        asked = AskedLookUp(table, keys, np.empty(len(keys), dtype=np.int32))
        self._found[table].append(asked)
        return asked

    def numbered(self) -> tuple[Keys, ...]:
        """Return the distinct keys of each table."""
        return tuple(map(_number, self._found))


def _heads_for(count: int) -> NDArray[np.int32]:
    """Return an empty hash map with room for so many keys."""
    return np.full(1 << max(4, (2 * count).bit_length()), -1, dtype=np.int32)


def _number(found: Sequence[AskedLookUp]) -> Keys:
    """Return the distinct keys of look-ups in one table; they get their numbers."""
    total = sum(len(each.keys) for each in found)
    if not total:
        return NO_KEYS
    distinct, heads, count = np.empty(total, dtype=np.int64), _heads_for(total), 0
    for each in found:
        count = number_keys(each.keys, heads, distinct, count, each.numbers)
    return distinct[:count]


Numbered = tuple[AskedLookUp, Keys, Whereabouts | None]
"""A look-up, the distinct keys of it, and where their rows lie."""


def numbered_apart(number: int, table: Table, keys: Keys, counts: Sequence[int]) -> list[Numbered]:
    """Return what several steps look up in a table, so many keys each, one after the other; all in a few kernels."""
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    distinct, numbers = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.int32)
    ends = np.zeros(len(counts) + 1, dtype=np.int64)
    number_batches(keys, bounds, _heads_for(max(counts)), distinct, numbers, ends)
    slots, as_of = table.find(distinct[: ends[-1]])
    is_here = np.minimum.reduceat(slots, ends[:-1]) >= 0
    found: list[Numbered] = []
    begin, first = 0, 0
    for end, last, here in zip(bounds[1:].tolist(), ends[1:].tolist(), is_here.tolist(), strict=True):
        asked = AskedLookUp(number, keys[begin:end], numbers[begin:end])
        found.append((asked, distinct[first:last], Whereabouts(slots[first:last], as_of) if here else None))
        begin, first = end, last
    return found


@dataclass(slots=True, eq=False)
class _Rows:
    """Distinct rows of a table that a step looks up, with the leaves that were made of them."""

    keys: Keys
    values: Floats
    where: Whereabouts | None
    leaves: list[tuple[Tensor, NDArray[np.int32], Keys, bool]] = field(default_factory=list)


class HostRows(BatchRows):
    """The rows of the step that is being computed: those prepared, and those that the model asks for besides."""

    def __init__(self, tables: Sequence[Table]) -> None:
        """Look up in tables, by their numbers."""
        super().__init__(1, torch.device("cpu"))
        self._tables = tables
        self._rows: list[_Rows | None] = []
        self._others: list[tuple[int, _Rows]] = []
        self._asked: list[AskedLookUp] = []
        self._num_asked = [0] * len(tables)
        self._singles = np.arange(1, dtype=np.int64)

    def source(self, table: int, check: Check = lambda _: None) -> HostSource:
        """Return one table as a model's `row_source`; `check` refuses keys that it has no row for."""
        return HostSource(table, self._tables[table].width, self, check)

    def begin(self, prepared: PreparedStep) -> None:  # type: ignore[override]
        """Read the rows of a step."""
        self._rows = [
            _Rows(keys, *table.lookup_distinct(keys, where=where)) if len(keys) else None
            for table, keys, where in zip(self._tables, prepared.keys, prepared.where, strict=True)
        ]
        self._others, self._num_asked = [], [0] * len(self._tables)

    def begin_part(self, asked: list[AskedLookUp]) -> None:
        """Expect the look-ups of a part."""
        self._asked = list(asked)
        for each in asked:
            self._num_asked[each.table] += 1

    def known(self, number: int, *, mean: bool) -> Tensor:
        """Return what the look-up of a number of this part gives, one vector a bag."""
        asked = self._asked[number]
        rows = self._rows[asked.table]
        width = self._tables[asked.table].width
        if rows is None:
            return torch.zeros(0 if asked.offsets is None else len(asked.offsets) - 1, width)
        return self._leaf(rows, asked.numbers, asked.offsets, mean=mean)

    def values(self, table: int, keys: Tensor, offsets: Tensor | None, check: Check, *, mean: bool) -> Tensor:
        """Return one vector a key, or one a bag."""
        wanted = np.ascontiguousarray(keys.detach().to(torch.int64).numpy())
        begins = None if offsets is None else np.ascontiguousarray(offsets.detach().to(torch.int64).numpy())
        if not torch.is_grad_enabled():
            check(keys)
            return self._only_read(table, wanted, begins, mean=mean)
        for place, asked in enumerate(self._asked):
            if asked.table == table and _are_same(asked.keys, wanted):
                del self._asked[place]
                rows = self._rows[table]
                if rows is not None:
                    return self._leaf(rows, asked.numbers, begins, mean=mean)
        check(keys)
        distinct = DistinctKeys(1)
        numbers = distinct.add(0, wanted).numbers
        (found,) = distinct.numbered()
        other = _Rows(found, *self._tables[table].lookup_distinct(found))
        self._others.append((table, other))
        return self._leaf(other, numbers, begins, mean=mean)

    def _leaf(self, rows: _Rows, numbers: NDArray[np.int32], offsets: Keys | None, *, mean: bool) -> Tensor:
        """Return vectors of rows that gradients stop at."""
        values = rows.values
        count = len(numbers) if offsets is None else len(offsets) - 1
        leaf = torch.empty(count, values.shape[1])  # of PyTorch: the bits of products hang on where in memory it lies
        if offsets is None:
            values.take(numbers, axis=0, out=leaf.numpy(), mode="clip")  # to raise would look at each first
            offsets = self._one_each(count)
        else:
            pool(values, numbers, offsets, mean, leaf.numpy())
        leaf.requires_grad_()
        rows.leaves.append((leaf, numbers, offsets, mean))
        return leaf

    def _only_read(self, table: int, keys: Keys, offsets: Keys | None, *, mean: bool) -> Tensor:
        values = self._tables[table].lookup(keys, insert=False)
        if offsets is None:
            return torch.from_numpy(values)
        out = np.empty((len(offsets) - 1, values.shape[1]), dtype=np.float32)
        pool(values, np.arange(len(keys), dtype=np.int32), offsets, mean, out)
        return torch.from_numpy(out)

    def _one_each(self, count: int) -> Keys:
        """Return where bags of one key each begin."""
        if len(self._singles) <= count:
            self._singles = np.arange(2 * count + 1, dtype=np.int64)
        return self._singles[: count + 1]

    def step(self, step: int, *, scale: float, factor: float) -> None:
        """Step the rows by the gradients that have come, times `scale`; a row that was looked up twice steps once.

        The first step has the number 1.
        """
        for number, (table, rows) in enumerate(zip(self._tables, self._rows, strict=True)):
            table.begin_step(step, factor=factor)
            others = [other for of, other in self._others if of == number]
            if rows is not None and not others and len(rows.leaves) == self._num_asked[number]:
                if (sums := _sums(rows)) is not None:
                    table.update_distinct(rows.keys, sums, scale=scale, where=rows.where)
                continue
            found = [_used(each) for each in (rows, *others) if each is not None and each.leaves]
            known = [(keys, sums) for keys, sums in found if len(keys)]
            if known:
                keys, sums = (np.concatenate(each) for each in zip(*known, strict=True))
                table.update(keys, sums * np.float32(scale))
        self._rows, self._others, self._asked = [], [], []


def _are_same(one: Keys, other: Keys) -> bool:
    """Say whether keys are the same: mostly they lie in the same memory, and nobody has to look at them."""
    if len(one) != len(other):
        return False
    return one.__array_interface__["data"] == other.__array_interface__["data"] or np.array_equal(one, other)


def _sums(rows: _Rows) -> Floats | None:
    """Return the gradients of distinct rows, summed; None where the loss depends on none of them."""
    sums = None
    for leaf, numbers, offsets, mean in rows.leaves:
        if leaf.grad is not None:
            sums = np.zeros(rows.values.shape, dtype=np.float32) if sums is None else sums
            spread(leaf.grad.contiguous().numpy(), numbers, offsets, mean, sums)
    return sums


def _used(rows: _Rows) -> tuple[Keys, Floats]:
    """Return the keys that were looked up and that the loss depends on, and the sums of their gradients."""
    is_used = np.zeros(len(rows.keys), dtype=np.bool_)
    for leaf, numbers, _, _ in rows.leaves:
        if leaf.grad is not None:
            is_used[numbers] = True
    sums = _sums(rows)
    return (NO_KEYS, rows.values[:0]) if sums is None else (rows.keys[is_used], sums[is_used])


class HostSource:
    """One table as a model's `row_source`."""

    def __init__(self, table: int, width: int, rows: HostRows, check: Check) -> None:
        """Keep which table this is, and what refuses keys that it has no row for."""
        self._table, self._width, self._rows, self._check = table, width, rows, check

    def look_up(self, keys: Tensor, offsets: Tensor, mode: str) -> Tensor:
        """Return one pooled vector a bag."""
        return self._rows.values(self._table, keys, offsets, self._check, mean=mode == "mean")

    def rows(self, keys: Tensor) -> Tensor:
        """Return one vector a key, whatever the shape of `keys`."""
        found = self._rows.values(self._table, keys.reshape(-1), None, self._check, mean=False)
        return found.view(*keys.shape, self._width)
