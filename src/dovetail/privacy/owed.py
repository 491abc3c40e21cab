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
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.privacy.keys import derived
from dovetail.privacy.normals import AT_ONCE, PAIR, normals

MOST_STEPS = 1 << 24
"""A row keeps the step as one float32 number, which is exact up to here."""
Floats = NDArray[np.float32]
Keys = NDArray[np.int64]
_24, _48 = np.uint64(24), np.uint64(48)


class Look(NamedTuple):
    """A step at which the whole table was looked at."""

    step: int
    variance: float
    """V of the step."""
    stream: str
    """Of the noise of the stretch that ends there."""


FIRST_LOOK = Look(0, 0.0, "")


class OwedFacts(NamedTuple):
    """What kernels need to know of steps: of looks, and from `first` on of every step."""

    looks: NDArray[np.int64]
    look_variances: NDArray[np.float64]
    look_streams: NDArray[np.int32]
    """Numbers of streams; that of the steps since is 0."""
    first: int
    variances: NDArray[np.float64]


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
        self._stream, self._deviation = stream, deviation
        self._secret, self._table = key, table
        self._looks: list[Look] = []
        self._first = first_step
        self._variances = np.zeros(1, dtype=np.float64)
        self._keys: list[bytes] = []
        self._arrays = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int32)
        self.step = 0
        """How many steps the table has had: rows are read as they are after so many."""
        self._take_up(looks)

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
        streams = list(dict.fromkeys([self._stream, *(each.stream for each in self._looks)]))
        self._keys = [derived(self._secret, name, "rows", self._table) for name in streams]
        self._arrays = (
            np.array([each.step for each in self._looks], dtype=np.int64),
            np.array([each.variance for each in self._looks], dtype=np.float64),
            np.array([streams.index(each.stream) for each in self._looks], dtype=np.int32),
        )

    def add_to(self, values: Floats, keys: Keys, since: Floats) -> None:
        """Add to values of rows, which were settled at steps, what they owe now."""
        self._pay(values, np.arange(len(keys)), keys, since.astype(np.int64), self.step, ends_with_one=False)

    def read(self, values: Floats, keys: Keys, rows: Floats, slots: NDArray[np.int32]) -> None:
        """Add to the values of keys, which were copied from rows at slots, what those owe now; no row changes.

        Where the slot is -1 there is no row, and nothing is added.
        """
        since = np.where(slots >= 0, rows[slots, values.shape[1]], np.float32(self.step)).astype(np.int64)
        self._pay(values, np.arange(len(keys)), keys, since, self.step, ends_with_one=False)

    def settle(self, rows: Floats, slots: NDArray[np.int32], keys: Keys, width: int, *, step: int) -> None:
        """Give rows at slots what they owed before a step, and then the noise of that step: they owe nothing after."""
        self._pay(rows[:, :width], slots, keys, rows[slots, width].astype(np.int64), step, ends_with_one=True)
        rows[slots, width] = np.maximum(rows[slots, width], np.float32(step))

    def _pay(
        self, values: Floats, places: NDArray[Any], keys: Keys, since: Keys, until: int, *, ends_with_one: bool
    ) -> None:
        """Add to values at places what their rows owe up to a step, which `ends_with_one` has a draw of its own."""
        known = OwedFacts(*self._arrays, self._first, self._until(until))
        pairs = -(-values.shape[1] // PAIR)
        some = max(1, AT_ONCE // pairs)
        for first in range(0, len(keys), some):
            part = slice(first, first + some)
            count = count_draws(since[part], until, ends_with_one, known.looks)
            of_row, streams = np.empty((2, count), dtype=np.int32)
            deviations, counters = np.empty(count), np.empty((count * pairs, 2), dtype=np.uint64)
            list_draws(
                keys[part], since[part], until, ends_with_one, pairs, known, of_row, streams, deviations, counters
            )
            add_draws(values, places[part], of_row, deviations, pairs, self._drawn(counters, streams, pairs))

    def _drawn(self, counters: NDArray[np.uint64], streams: NDArray[np.int32], pairs: int) -> NDArray[np.float64]:
        """Return the numbers of draws, each of its own stream."""
        if not streams.any():
            return normals(self._keys[0], counters)
        drawn = np.empty((len(streams), pairs * PAIR))
        by_draw = counters.reshape(len(streams), pairs, 2)
        for number in np.unique(streams):
            mine = streams == number
            drawn[mine] = normals(self._keys[number], by_draw[mine].reshape(-1, 2)).reshape(-1, pairs * PAIR)
        return drawn.ravel()

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


@njit(cache=True, nogil=True)
def count_draws(settled, until, ends_with_one, looks):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return how many draws rows owe: one for each stretch between two looks at the whole table."""
    count = 0
    for i in range(len(settled)):
        if settled[i] >= until:
            continue
        before = until - 1 if ends_with_one else until
        count += 1 if ends_with_one else 0
        at = np.searchsorted(looks, settled[i], side="right")
        since = settled[i]
        while since < before:
            since = looks[at] if at < len(looks) and looks[at] <= before else before
            at += 1
            count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def list_draws(keys, settled, until, ends_with_one, pairs, known, of_row, streams, deviations, counters):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write of each draw whose it is, of which stream, its deviation, and the counters that its numbers have."""
    count = 0
    for i in range(len(settled)):
        since = settled[i]
        if since >= until:
            continue
        before_last = until - 1 if ends_with_one else until
        at = np.searchsorted(known.looks, since, side="right")
        # Before the first step of this stream nothing but looks is known, and every row was settled at one of them.
        before = known.variances[since - known.first] if since >= known.first else known.look_variances[at - 1]
        while since < until:
            stream = 0
            if at < len(known.looks) and known.looks[at] <= before_last:
                end, after, stream = known.looks[at], known.look_variances[at], known.look_streams[at]
                at += 1
            else:
                end = before_last if since < before_last else until
                after = known.variances[end - known.first]
            of_row[count], streams[count] = i, stream
            deviations[count] = np.sqrt(max(0.0, after - before))
            # A counter: the row; from where, to where, and which pair of its numbers.
            steps = np.uint64(since) | (np.uint64(end) << _24)
            for pair in range(pairs):
                counters[count * pairs + pair, 0] = np.uint64(keys[i])
                counters[count * pairs + pair, 1] = steps | (np.uint64(pair) << _48)
            since, before = end, after
            count += 1


@njit(cache=True, nogil=True, error_model="numpy")
def add_draws(values, places, of_row, deviations, pairs, drawn):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add draws to the values of their rows, one after the other."""
    width = values.shape[1]
    for draw in range(len(of_row)):
        row = values[places[of_row[draw]]]
        first = draw * pairs * 2
        for j in range(width):
            row[j] += np.float32(deviations[draw] * drawn[first + j])
