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
  reads a checkpoint adds what they owe up to c, as a run that goes on from it does. It costs a list of steps, and
  what a row gets later hangs on where they were: two runs have the same noise if they were saved at the same steps;
- where a run goes on with other settings, and so with another stream, rows are settled as they are loaded, by what they
  owed until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

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


class Look(NamedTuple):
    """A step at which the whole table was looked at."""

    step: int
    variance: float
    """V of the step."""
    stream: str
    """Of the noise of the stretch that ends there."""


FIRST_LOOK = Look(0, 0.0, "")


class Known(NamedTuple):
    """What kernels need to know of steps: of looks, and from `first` on of every step, with the key of its noise."""

    looks: NDArray[np.int64]
    look_variances: NDArray[np.float64]
    look_keys: NDArray[np.uint32]
    first: int
    variances: NDArray[np.float64]
    key: NDArray[np.uint32]


class OwedNoise:
    """What the rows of one table owe. A row has, behind its values, the number of the step that it was settled at."""

    def __init__(
        self,
        key: bytes,
        *,
        stream: str,
        table: int,
        deviation: Callable[[int], float],
        looks: Iterable[Look] = (),
        first_step: int = 0,
    ) -> None:
        """Draw from a stream of a key that no worker has, which the steps after `first_step` have.

        `deviation` says by how much a step, counted from 1, moves every number of every row, and never changes its
        answer. `looks` are those at the whole table so far, one at `first_step` among them.
        """
        self._secret, self._stream, self._table, self._deviation = key, stream, table, deviation
        self._looks: list[Look] = []
        self._first = first_step
        self._variances = np.zeros(1, dtype=np.float64)
        self._key = self._key_of(stream)
        self._arrays = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, len(self._key)), dtype=np.uint32)
        self.step = 0
        """How many steps the table has had: rows are read as they are after so many."""
        self._take_up(looks)

    def _key_of(self, stream: str) -> NDArray[np.uint32]:
        return key_words(derived(self._secret, stream, "rows", self._table))

    @property
    def looks(self) -> list[Look]:
        """Return when the whole table was looked at, step 0 first."""
        return self._looks

    def _take_up(self, looks: Iterable[Look]) -> None:
        """Take looks at the whole table up, the last of which was at the step that the table is at now."""
        by_step = {each.step: each for each in (FIRST_LOOK, *(Look(*each) for each in looks))}
        self._looks = [by_step[step] for step in sorted(by_step)]
        if self._first not in by_step:
            raise ValueError(f"nobody has looked at the table at step {self._first}, where its noise begins")
        self._variances = np.array([by_step[self._first].variance])
        self._lay_out()
        self.step = self._looks[-1].step

    def save(self) -> None:
        """Say that the whole table is looked at as it is now."""
        if all(each.step != self.step for each in self._looks):
            variance = float(self._until(self.step)[self.step - self._first])
            self._looks.append(Look(self.step, variance, self._stream))
            self._lay_out()

    def _lay_out(self) -> None:
        """Have the looks as kernels take them."""
        self._arrays = (
            np.array([each.step for each in self._looks], dtype=np.int64),
            np.array([each.variance for each in self._looks], dtype=np.float64),
            np.stack([self._key_of(each.stream) for each in self._looks]),
        )

    def add_to(self, values: Floats, keys: Keys, since: Floats) -> None:
        """Add to values of rows, which were settled at steps, what they owe now."""
        add_owed(values, keys, since, self.step, self._known(self.step))

    def read(self, values: Floats, keys: Keys, rows: Floats, slots: NDArray[np.int32]) -> None:
        """Add to the values of keys, which were copied from rows at slots, what those owe now; no row changes."""
        read_owed(values, keys, rows, slots, self.step, self._known(self.step))

    def settle(self, rows: Floats, slots: NDArray[np.int32], keys: Keys, width: int, *, step: int) -> None:
        """Give rows at slots what they owed before a step, and then the noise of that step: they owe nothing after."""
        settle(rows, slots, keys, width, step, self._known(step))

    def _known(self, step: int) -> Known:
        return Known(*self._arrays, self._first, self._until(step), self._key)

    def _until(self, step: int) -> NDArray[np.float64]:
        """Return V of the first step, the next and so on, up to a step at least."""
        have, needed = len(self._variances), step - self._first
        if needed >= have:
            wanted = min(MOST_STEPS, max(needed + 1, 2 * have))
            squares = [self._deviation(self._first + each) ** 2 for each in range(have, wanted)]
            self._variances = np.concatenate(
                [self._variances[:-1], np.cumsum([self._variances[-1], *squares], dtype=np.float64)]
            )
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
def _pay(values, width, row, since, until, known, block, normals):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add what a row owes, one draw for each stretch between two looks at the whole table."""
    at = np.searchsorted(known.looks, since, side="right")
    # Before the first step of this stream nothing but looks is known, and every row was settled at one of them.
    before = known.variances[since - known.first] if since >= known.first else known.look_variances[at - 1]
    while since < until:
        if at < len(known.looks) and known.looks[at] <= until:
            end, after, key = known.looks[at], known.look_variances[at], known.look_keys[at]
            at += 1
        else:
            end, after, key = until, known.variances[until - known.first], known.key
        _draw(values, width, row, since, end, np.sqrt(max(0.0, after - before)), key, block, normals)
        since, before = end, after


@njit(cache=True, nogil=True, error_model="numpy")
def add_owed(values, keys, settled, until, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to each row of values what it owes."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    for i in range(len(keys)):
        _pay(values[i], values.shape[1], keys[i], np.int64(settled[i]), until, known, block, normals)


@njit(cache=True, nogil=True, error_model="numpy")
def read_owed(values, keys, rows, slots, until, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add to values that were copied from rows at slots what those owe; where the slot is -1, nothing."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    width = values.shape[1]
    for i in range(len(keys)):
        if slots[i] >= 0:
            _pay(values[i], width, keys[i], np.int64(rows[slots[i], width]), until, known, block, normals)


@njit(cache=True, nogil=True, error_model="numpy")
def settle(rows, slots, keys, width, step, known):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Give rows what they owe up to the step before, then that of the step; note the step."""
    block, normals = np.empty(16, dtype=np.uint32), np.empty(NORMALS_A_BLOCK, dtype=np.float64)
    of_step = known.variances[step - known.first] - known.variances[step - 1 - known.first]
    deviation = np.sqrt(max(0.0, of_step))
    for i in range(len(slots)):
        row = rows[slots[i]]
        since = np.int64(row[width])
        if since < step:
            _pay(row, width, keys[i], since, step - 1, known, block, normals)
            _draw(row, width, keys[i], step - 1, step, deviation, known.key, block, normals)
            row[width] = np.float32(step)
