"""Noise that rows of a table owe: a row that no step touches gets it later, in one draw for all those steps.

With plain SGD a step t changes every row of a private table, those that no sample looked up as well:

    w(t) = w(t - 1) - r(t) (g(t) + d z(t)),    z(t) ~ N(0, 1), one number for each number of the row

where r(t) is the rate at that step over the expected batch, g(t) the sum of clipped gradients, which is zero for rows
that no sample looked up, and d the deviation of the noise in the sum. While a row is not looked up, from step a to b,

    w(b) = w(a) - d (r(a + 1) z(a + 1) + ... + r(b) z(b))

Nobody has seen the row in between, and a sum of independent normal numbers is one normal number:

    w(b) - w(a) ~ N(0, V(b) - V(a)),    V(t) = d^2 (r(1)^2 + ... + r(t)^2)

So one draw of that variance, when the row is next looked at, has the distribution that noise at every step would have
had. It has it jointly with all else that is ever looked at: draws for stretches that do not overlap are independent, as
the sums over them are, and gradients hang on rows only as they were looked at. A row that has never been looked up owes
from step 0. With row optimizers whose state sees squares of gradients, or carries gradients on, no single draw stands
for many: every step's noise would have changed the state. They are refused.

A draw is a function of (key, row, a, b) alone, so it is the same wherever the row lies, whoever draws it, and when the
same steps are trained again. What is looked at must not be drawn anew: two draws over stretches that begin alike would
say more of the row than either. Therefore

- reading a row at step t changes nothing: it adds the draw from a to t, and the step t + 1 that the row is then part of
  draws the same again, from a to t, before its own, from t to t + 1;
- a checkpoint at step c is looked at: from then on no stretch goes across c. Rows are saved as they are, and whoever
  reads a checkpoint adds what they owe up to c, as a run that goes on from it does. It costs a list of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.privacy.chacha import NORMALS_A_BLOCK, fill_normals, key_words
from dovetail.privacy.keys import derived

MOST_STEPS = 1 << 24
"""A row keeps the step as one float32 number, which is exact up to here."""
Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
_16, _32 = np.uint64(16), np.uint64(32)
_LOW_16, _LOW_24 = np.uint64(0xFFFF), np.uint64(0xFFFFFF)


class OwedNoise:
    """What the rows of one table owe. A row has, behind its values, the number of the step that it was settled at."""

    def __init__(
        self, key: bytes, *, stream: str, table: int, deviation: Callable[[int], float], looked_at: Iterable[int] = ()
    ) -> None:
        """Draw from a stream of a key that no worker has.

        `deviation` says by how much a step, counted from 1, moves every number of every row, and never changes its
        answer. At the steps in `looked_at` the whole table was saved.
        """
        self._key = key_words(derived(key, stream, "rows", table))
        self._deviation = deviation
        self._variances = np.zeros(1, dtype=np.float64)
        self.step = 0
        """How many steps the table has had: rows are read as they are after so many."""
        self._looked_at = np.zeros(1, dtype=np.int64)
        self.look_back(looked_at)

    @property
    def looked_at(self) -> list[int]:
        """Return the steps at which the whole table was saved, 0 first."""
        return [int(step) for step in self._looked_at]

    def look_back(self, steps: Iterable[int]) -> None:
        """Say that the whole table was saved at these steps, the last of which is the one that it is at now."""
        self._looked_at = np.array(sorted({0, *steps}), dtype=np.int64)
        self.step = int(self._looked_at[-1])

    def save(self) -> None:
        """Say that the whole table is looked at as it is now."""
        self.look_back({*self.looked_at, self.step})

    def add_to(self, values: Floats, keys: Keys, since: Floats) -> None:
        """Add to values of rows, which were settled at steps, what they owe now."""
        add_owed(values, keys, since, self.step, self._looked_at, self._until(self.step), self._key)

    def read(self, values: Floats, keys: Keys, rows: Floats, slots: NDArray[np.int32]) -> None:
        """Add to the values of keys, which were copied from rows at slots, what those owe now; no row changes."""
        read_owed(values, keys, rows, slots, self.step, self._looked_at, self._until(self.step), self._key)

    def settle(self, rows: Floats, slots: NDArray[np.int32], keys: Keys, width: int, *, step: int) -> None:
        """Give rows at slots what they owed before a step, and then the noise of that step: they owe nothing after."""
        settle(rows, slots, keys, width, step, self._looked_at, self._until(step), self._key)

    def _until(self, step: int) -> NDArray[np.float64]:
        """Return V(0), V(1), ... up to a step at least."""
        have = len(self._variances)
        if step >= have:
            wanted = min(MOST_STEPS, max(step + 1, 2 * have))
            squares = [self._variances[-1], *(self._deviation(each) ** 2 for each in range(have, wanted))]
            self._variances = np.concatenate([self._variances[:-1], np.cumsum(squares)])
        return self._variances


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _draw(values, width, row, since, until, deviation, key, block, normals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the draw of a row for the steps after `since` up to `until`; row, steps and block make up the counter."""
    low, high = np.uint64(row), np.uint64(row) >> _32
    steps = (np.uint64(since) & _LOW_24) | ((np.uint64(until) >> _16) << np.uint64(24))
    for number in range((width + NORMALS_A_BLOCK - 1) // NORMALS_A_BLOCK):
        place = np.uint64(number) | ((np.uint64(until) & _LOW_16) << _16)
        fill_normals(key, place, steps, low, high, block, normals)
        begin = number * NORMALS_A_BLOCK
        for j in range(begin, min(width, begin + NORMALS_A_BLOCK)):
            values[j] += np.float32(deviation * normals[j - begin])


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _pay(values, width, row, since, until, looked_at, variances, key, block, normals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add what a row owes, one draw for each stretch between two looks at the whole table."""
    at = np.searchsorted(looked_at, since, side="right")
    while since < until:
        end = until
        if at < len(looked_at) and looked_at[at] < until:
            end = looked_at[at]
            at += 1
        deviation = np.sqrt(max(0.0, variances[end] - variances[since]))
        _draw(values, width, row, since, end, deviation, key, block, normals)
        since = end


@njit(cache=True, nogil=True, error_model="numpy")
def add_owed(values, keys, settled, until, looked_at, variances, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to each row of values what it owes."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    for i in range(len(keys)):
        since = np.int64(settled[i])
        _pay(values[i], values.shape[1], keys[i], since, until, looked_at, variances, key, block, normals)


@njit(cache=True, nogil=True, error_model="numpy")
def read_owed(values, keys, rows, slots, until, looked_at, variances, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to values that were copied from rows at slots what those owe; where the slot is -1, nothing."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    width = values.shape[1]
    for i in range(len(keys)):
        if slots[i] >= 0:
            since = np.int64(rows[slots[i], width])
            _pay(values[i], width, keys[i], since, until, looked_at, variances, key, block, normals)


@njit(cache=True, nogil=True, error_model="numpy")
def settle(rows, slots, keys, width, step, looked_at, variances, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Give rows what they owe up to the step before, then that of the step; note the step."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    deviation = np.sqrt(max(0.0, variances[step] - variances[step - 1]))
    for i in range(len(slots)):
        row = rows[slots[i]]
        since = np.int64(row[width])
        _pay(row, width, keys[i], since, step - 1, looked_at, variances, key, block, normals)
        if since < step:
            _draw(row, width, keys[i], step - 1, step, deviation, key, block, normals)
            row[width] = np.float32(step)
