"""What a site has learnt that the others have not heard of yet: of the rows of one table, and of dense parameters.

    live = base + on its way + the rest

`base` is what all sites agree on, to the last bit: it changes by exchanges alone, and by the same numbers everywhere.
A cut takes the rest of every row that was touched since the last cut; what of it survives a codec is `on its way` until
an exchange brings it into the base. What the codec rounded away stays in `live`, and so in the next cut of the row
(error feedback without a residual of its own). A row that nothing is on its way of, and that was not touched since, is
put on the base exactly: what rounding left in it is dropped, so that all sites have the same row.

Rows that the site has not touched are their own base: only touched ones take memory here, until they are agreed on.

No sockets, no clock, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.sites.key_index import KeyIndex, Keys
from dovetail.runtime.sites.row_kernels import agree_rows, merge_rows

Floats = NDArray[np.float32]


class Rows(Protocol):
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

    def touch(self, keys: Keys, rows: Rows) -> None:
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

    def rest(self, rows: Rows) -> RowDeltas:
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

    def agree(self, change: tuple[Keys, Floats], own: RowDeltas | None, rows: Rows) -> None:
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
        """Start from where all sites start."""
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
