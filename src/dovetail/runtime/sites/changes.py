"""What a site has learnt that the others have not heard of yet, and what several have learnt as one change.

    live = base + on its way + the rest

`base` is what all sites agree on, to the last bit: it changes by exchanges alone, and by the same numbers everywhere.
A cut takes the rest of every row that was touched since the last cut; what of it survives a codec is `on its way` until
an exchange brings it into the base. What the codec rounded away stays in `live`, and so in the next cut of the row
(error feedback without a residual of its own). A row that nothing is on its way of, and that was not touched since, is
put on the base exactly: what rounding left in it is dropped, so that all sites have the same row.

Rows that the site has not touched are their own base: only touched ones take memory here, until they are agreed on.

No sockets, no clock, no files.

Several sites' changes as one, the same numbers at every site:

Dense parameters: the mean of the sites' changes, weighted by samples; the outer optimizer takes it as its gradient.

Rows, by what updates them:

- SGD is linear: a row's change is the mean over all sites of the exchange, weighted by samples, and zero for a site
  that did not touch it. One step a round is then one step on the union of the batches.
- Adagrad and Adam divide by the size of gradients: a site's steps are as long as those of one site with all samples,
  and not shorter because it has fewer of them. The sites' changes are added up. For rare rows that is what one site
  does, whose steps touch them as often as all sites' together. For rows of every step theory wants something between
  the mean and the sum: gradients are mostly noise there, and over K times the samples it is smaller by sqrt(K), so one
  site's steps come to sqrt(K) times the mean. The sum ended closer to one site (`benchmarks/site_quality.py`).

Where gradients are summed over samples and not averaged (`reduction = "sum"`), SGD's changes are summed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.embedding.key_numbers import find_numbers, number_keys

Keys = NDArray[np.int64]
Slots = NDArray[np.int32]
FIRST_ROOM = 1024


class KeyIndex:
    """A number for every key; keys leave when only some are kept."""

    def __init__(self) -> None:
        self.count = 0
        self._keys = np.empty(FIRST_ROOM, dtype=np.int64)
        self._heads = np.full(4 * FIRST_ROOM, -1, dtype=np.int32)

    @property
    def keys(self) -> Keys:
        """Return the keys by their numbers."""
        return self._keys[: self.count]

    def find(self, keys: Keys) -> Slots:
        """Return the number of each key, -1 where it has none."""
        slots = np.empty(len(keys), dtype=np.int32)
        find_numbers(keys, self._heads, self._keys, slots)
        return slots

    def add(self, keys: Keys) -> Slots:
        """Return the number of each of some distinct keys; those without one get the next."""
        if self.count + len(keys) > len(self._keys):
            self._make_room(self.count + len(keys))
        slots = np.empty(len(keys), dtype=np.int32)
        self.count = number_keys(keys, self._heads, self._keys, self.count, slots)
        return slots

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Keep some keys, in their order, and forget the others."""
        keys = self.keys[kept]
        self.count = 0
        self._keys = np.empty(FIRST_ROOM, dtype=np.int64)
        self._heads = np.full(4 * FIRST_ROOM, -1, dtype=np.int32)
        self.add(keys)

    def _make_room(self, wanted: int) -> None:
        keys = self.keys
        size = 1 << (wanted - 1).bit_length()
        self._keys = np.empty(size, dtype=np.int64)
        self._heads = np.full(4 * size, -1, dtype=np.int32)
        self.count = number_keys(keys, self._heads, self._keys, 0, np.empty(len(keys), dtype=np.int32))


@njit(cache=True, nogil=True)
def merge_rows(keys, total, more, values, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return rising keys of both, and `total + scale * values` of each, where what one has not is zero."""
    count, i, j = 0, 0, 0
    while i < len(keys) or j < len(more):
        is_first = j == len(more) or (i < len(keys) and keys[i] <= more[j])
        is_second = i == len(keys) or (j < len(more) and more[j] <= keys[i])
        i, j, count = i + is_first, j + is_second, count + 1
    width = values.shape[1]
    all_keys = np.empty(count, dtype=np.int64)
    sums = np.zeros((count, width), dtype=np.float32)
    i = j = 0
    for at in range(count):
        is_first = j == len(more) or (i < len(keys) and keys[i] <= more[j])
        is_second = i == len(keys) or (j < len(more) and more[j] <= keys[i])
        all_keys[at] = keys[i] if is_first else more[j]
        if is_first:
            for place in range(width):
                sums[at, place] = total[i, place]
            i += 1
        if is_second:
            for place in range(width):
                sums[at, place] += scale * values[j, place]
            j += 1
    return all_keys, sums


@njit(cache=True, nogil=True)
def agree_rows(keys, delta, slots, live, base, sent, rounds, touched, own_keys, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Bring changes into the base of known rows and into live ones; `own`, of some keys, are not on their way any more.

    Rows that nothing is on its way of, and that were not touched, are what was agreed on, exactly.
    """
    width, mine = live.shape[1], 0
    for i in range(len(keys)):
        slot = slots[i]
        is_own = mine < len(own_keys) and own_keys[mine] == keys[i]
        if is_own:
            rounds[slot] -= 1
        is_settled = slot < 0 or (rounds[slot] == 0 and not touched[slot])
        for place in range(width):
            before = base[slot, place] if slot >= 0 else live[i, place]
            agreed = before + delta[i, place]
            now = live[i, place] + (agreed - before)
            if is_own:
                now -= own[mine, place]
                sent[slot, place] -= own[mine, place]
            if slot >= 0:
                base[slot, place] = agreed
            live[i, place] = agreed if is_settled else now
        mine += is_own
    return mine


Floats = NDArray[np.float32]


class SiteRows(Protocol):
    """Values of rows, wherever they lie."""

    def read(self, keys: Keys) -> Floats:
        """Return the values of distinct keys, to be changed at will."""
        ...

    def write(self, keys: Keys, values: Floats) -> None:
        """Give the rows of distinct keys these values."""
        ...


@dataclass(frozen=True, slots=True)
class RowDeltas:
    """How rows of rising keys changed."""

    keys: Keys
    values: Floats


class RowProgress:
    """The touched rows of one table."""

    def __init__(self, width: int) -> None:
        """Start with the table as it is: that is the base."""
        self.index = KeyIndex()
        self.base = np.empty((0, width), dtype=np.float32)
        self.sent = np.empty((0, width), dtype=np.float32)
        self.rounds = np.empty(0, dtype=np.int32)
        """In how many rounds that are on their way the row is."""
        self.touched = np.empty(0, dtype=np.bool_)
        """Whether a step has changed it since the last cut."""

    def touch(self, keys: Keys, rows: SiteRows) -> None:
        """Say that a step is about to change the rows of distinct keys."""
        slots = self.index.find(keys)
        new = keys[slots < 0]
        if len(new):
            slots[slots < 0] = self.index.add(new)
            self._make_room()
            self.base[self.index.count - len(new) : self.index.count] = rows.read(new)
        self.touched[slots] = True

    def _make_room(self) -> None:
        """Have room for every key; what is new is zero."""
        if self.index.count > len(self.base):
            more = max(self.index.count, 2 * len(self.base)) - len(self.base)
            for name in ("base", "sent", "rounds", "touched"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)]))

    def rest(self, rows: SiteRows) -> RowDeltas:
        """Return what there is to tell of rows touched since the last cut."""
        slots = np.flatnonzero(self.touched[: self.index.count])
        slots = slots[np.argsort(self.index.keys[slots])]
        keys = self.index.keys[slots]
        return RowDeltas(keys, rows.read(keys) - self.base[slots] - self.sent[slots])

    def cut(self, told: RowDeltas) -> None:
        """Begin anew: these are on their way, as the others will read them."""
        slots = self.index.find(told.keys)
        self.sent[slots] += told.values
        self.rounds[slots] += 1
        self.touched[: self.index.count] = False

    def agree(self, change: tuple[Keys, Floats], own: RowDeltas | None, rows: SiteRows) -> None:
        """Bring a change into the base, and with it what of it was `own`, which is not on its way any more."""
        keys, delta = change
        none = (keys[:0], delta[:0])
        own_keys, own_values = none if own is None else (own.keys, own.values)
        if own is not None:  # a change that is zero for them: they are looked at all the same
            keys, delta = merge_rows(keys, delta, own_keys, np.zeros_like(own_values), np.float32(1))
        slots = self.index.find(keys)
        live = rows.read(keys)
        known = (self.base, self.sent, self.rounds, self.touched)
        agree_rows(keys, delta, slots, live, *known, own_keys, own_values)
        rows.write(keys, live)
        self._forget_settled()

    def _forget_settled(self) -> None:
        """Let go of rows that are their own base again."""
        count = self.index.count
        kept = (self.rounds[:count] > 0) | self.touched[:count]
        if kept.all():
            return
        self.index.keep(kept)
        for name in ("base", "sent", "rounds", "touched"):
            setattr(self, name, getattr(self, name)[:count][kept])


class DenseProgress:
    """Dense parameters: a base, what is on its way, and the memory of the outer optimizer."""

    def __init__(self, values: Floats) -> None:
        self.base = values.copy()
        self.velocity = np.zeros_like(values)
        self.sent = np.zeros_like(values)
        self.rounds = 0

    def rest(self, live: Floats) -> Floats:
        """Return what there is to tell."""
        return live - self.base - self.sent

    def cut(self, told: Floats) -> None:
        """Say what is on its way, as the others will read it."""
        self.sent += told
        self.rounds += 1

    def agree(self, change: Floats, own: Floats | None, live: Floats, *, rate: float, momentum: float) -> None:
        """Step the base by a change, as SGD with Nesterov's momentum does; `live` moves along."""
        step = change
        if momentum:
            self.velocity *= np.float32(momentum)
            self.velocity += change
            step = change + np.float32(momentum) * self.velocity
        agreed = self.base + np.float32(rate) * step
        live += agreed - self.base
        self.base = agreed
        if own is not None:
            live -= own
            self.rounds -= 1
            self.sent = self.sent - own if self.rounds else np.zeros_like(self.sent)

    def settle(self, live: Floats) -> None:
        """Put everything on the base: training is over, and nothing is on its way."""
        live[:] = self.base


@dataclass(frozen=True, slots=True)
class SiteChange:
    """What one site brings to an exchange, as everyone reads it."""

    samples: int
    dense: Floats
    tables: Sequence[RowDeltas]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How changes are combined: whether rows' updates are linear, and whether sums over samples are wanted."""

    linear_rows: bool
    sums: bool


def weights(parts: Sequence[SiteChange], rule: Rule) -> list[np.float32]:
    """Return what the sites' changes are multiplied by before they are added."""
    if rule.sums:
        return [np.float32(1)] * len(parts)
    total = sum(part.samples for part in parts)
    return [np.float32(part.samples / total) if total else np.float32(1 / len(parts)) for part in parts]


def combined_dense(parts: Sequence[SiteChange], rule: Rule) -> Floats:
    """Return the change of dense parameters."""
    total = np.zeros_like(parts[0].dense)
    for part, weight in zip(parts, weights(parts, rule), strict=True):
        total += weight * part.dense
    return total


def combined_rows(parts: Sequence[SiteChange], table: int, rule: Rule) -> tuple[Keys, Floats]:
    """Return the change of a table: rising keys, and how much each row changes."""
    deltas = [part.tables[table] for part in parts]
    keys: Keys = deltas[0].keys[:0]
    total: Floats = deltas[0].values[:0]
    scales = weights(parts, rule) if rule.linear_rows else [np.float32(1)] * len(parts)
    for each, scale in zip(deltas, scales, strict=True):
        keys, total = merge_rows(keys, total, each.keys, each.values, scale)
    return keys, total
