"""Look-ups by all-to-all: keys go to the workers that own them, rows come back, gradients go where the keys went.

A worker asks for every key of its part of a batch once, with one message to each owner for all tables together. An
owner looks a row up once, however many ask for it. It adds the gradients of a row in the order of the ranks that sent
them, so that a sum has the same bits every time, and steps the row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding import Table, Whereabouts
from dovetail.embedding.key_numbers import number_keys
from dovetail.runtime.trainer.sharded.process_group import ProcessGroup
from dovetail.runtime.worker.rows.keys import Keys, LookUp

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OwnedKeys:
    """What all workers ask one owner of one table: each key once, and which of them every request is, by rank."""

    keys: Keys
    places: NDArray[np.int32] | None
    """None where the requests are the keys: nobody else asks."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyExchange:
    """One round of look-ups, after its keys have gone to their owners."""

    look_ups: tuple[LookUp, ...]
    """Of each table, what is asked from here."""
    sent: Counts
    """[rank, table]: how many keys went there."""
    received: Counts
    """[rank, table]: how many came from there."""
    owned: tuple[OwnedKeys, ...]
    """Of each table, what is asked here."""
    samples: int
    """Of all workers' parts together, as each has told."""


def exchange_keys(
    group: ProcessGroup, look_ups: Sequence[LookUp], *, asks: bool = True, samples: int = 0
) -> KeyExchange | None:
    """Send keys to their owners, and take in those that this worker owns; `look_ups` has one of each table.

    Whoever asks for nothing says so, and takes part all the same; None: nobody asks. `samples` are told to all.
    """
    bounds = np.array([look_up.bounds for look_up in look_ups], dtype=np.int64).reshape(-1, group.size + 1)
    mine = np.concatenate([np.diff(bounds, axis=1).T, np.full((group.size, 2), (asks, samples))], axis=1)
    theirs = group.swap_counts(mine)
    if not theirs[:, -2].any():
        return None
    sent, received = np.ascontiguousarray(mine[:, :-2]), np.ascontiguousarray(theirs[:, :-2])
    keys = np.empty(int(received.sum()), dtype=np.int64)
    group.all_to_all(
        torch.from_numpy(_by_owner(look_ups, group.size)),
        sent.sum(1).tolist(),
        torch.from_numpy(keys),
        received.sum(1).tolist(),
    )
    begins = _begins(received)
    tables = range(len(look_ups))
    owned = tuple(_own(_of_table(keys, begins, received, table), alone=group.size == 1) for table in tables)
    return KeyExchange(tuple(look_ups), sent, received, owned, int(theirs[:, -1].sum()))


def _by_owner(look_ups: Sequence[LookUp], num_owners: int) -> Keys:
    """Return the keys of all tables in one vector, by owner and then by table."""
    if len(look_ups) == 1:
        return look_ups[0].keys
    parts = [look_up.keys[look_up.of_server(owner)] for owner in range(num_owners) for look_up in look_ups]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _begins(counts: Counts) -> Counts:
    """Return where each rank's entries of each table begin, in a buffer that has them by rank, then by table."""
    ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
    return np.asarray(ends - counts)


def _of_table(buffer: Keys, begins: Counts, counts: Counts, table: int) -> Keys:
    """Return the entries of a table, by rank."""
    if counts.shape[1] == 1:
        return buffer
    parts = [buffer[begin : begin + count] for begin, count in zip(begins[:, table], counts[:, table], strict=True)]
    return np.concatenate(parts)


def _own(asked: Keys, *, alone: bool) -> OwnedKeys:
    """Return what is asked of this owner, each key once."""
    if alone:
        return OwnedKeys(asked, None)
    keys, places = np.empty(len(asked), dtype=np.int64), np.empty(len(asked), dtype=np.int32)
    heads = np.full(1 << max(4, int(2 * len(asked)).bit_length()), -1, dtype=np.int32)
    return OwnedKeys(keys[: number_keys(asked, heads, keys, 0, places)], places)


class RowExchange:
    """Rows and gradients of rounds whose keys were exchanged."""

    def __init__(self, group: ProcessGroup, tables: Sequence[Table]) -> None:
        """Look up in the tables that this worker owns a part of."""
        self._group, self._tables = group, tables
        self._widths = np.array([table.width for table in tables], dtype=np.int64)

    def rows(self, exchange: KeyExchange) -> tuple[list[Tensor], list[Whereabouts | None]]:
        """Return the rows of each table that are asked from here, and where those lie that are asked here."""
        owned, wheres = [], []
        for table, asked in zip(self._tables, exchange.owned, strict=True):
            values, where = table.lookup_distinct(asked.keys)
            owned.append(values if asked.places is None else np.take(values, asked.places, axis=0))
            wheres.append(where)
        mine = self._packed(owned, exchange.received)
        theirs = np.empty(int((exchange.sent * self._widths).sum()), dtype=np.float32)
        self._swap(mine, exchange.received, theirs, exchange.sent)
        return [torch.from_numpy(each) for each in self._unpacked(theirs, exchange.sent)], wheres

    def gradients(self, exchange: KeyExchange, gradients: Sequence[Floats]) -> list[Floats]:
        """Send gradients of looked-up rows to their owners; return the sums for the rows that are asked here."""
        mine = self._packed(gradients, exchange.sent)
        theirs = np.empty(int((exchange.received * self._widths).sum()), dtype=np.float32)
        self._swap(mine, exchange.sent, theirs, exchange.received)
        found = []
        for asked, values in zip(exchange.owned, self._unpacked(theirs, exchange.received), strict=True):
            if asked.places is None:
                found.append(values)
                continue
            sums = np.full((len(asked.keys), values.shape[1]), -0.0, dtype=np.float32)
            add_in_order(values, asked.places, sums)
            found.append(sums)
        return found

    def _swap(self, mine: Floats, counts: Counts, theirs: Floats, their_counts: Counts) -> None:
        sizes, their_sizes = ((each * self._widths).sum(1).tolist() for each in (counts, their_counts))
        self._group.all_to_all(torch.from_numpy(mine), sizes, torch.from_numpy(theirs), their_sizes)

    def _packed(self, by_table: Sequence[Floats], counts: Counts) -> Floats:
        """Return rows of tables, each by rank, as one vector by rank and then by table."""
        if len(by_table) == 1:
            return np.ascontiguousarray(by_table[0]).reshape(-1)
        ends = np.cumsum(counts, axis=0)
        parts = [
            values[end - count : end].reshape(-1)
            for of_rank, ends_of_rank in zip(counts.tolist(), ends.tolist(), strict=True)
            for values, count, end in zip(by_table, of_rank, ends_of_rank, strict=True)
        ]
        return np.concatenate([np.empty(0, dtype=np.float32), *parts])

    def _unpacked(self, vector: Floats, counts: Counts) -> list[Floats]:
        """Return what was packed: rows of each table, by rank."""
        widths = self._widths.tolist()
        if len(widths) == 1:
            return [vector.reshape(-1, widths[0])]
        sizes = counts * self._widths
        begins = _begins(sizes)
        found = []
        for table, width in enumerate(widths):
            pairs = zip(begins[:, table].tolist(), sizes[:, table].tolist(), strict=True)
            found.append(np.concatenate([vector[begin : begin + size] for begin, size in pairs]).reshape(-1, width))
        return found


@njit(cache=True, nogil=True)
def add_in_order(values, places, sums):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add each row of `values` to its sum, one after the other; sums are -0.0 at first."""
    for i in range(len(places)):
        total, value = sums[places[i]], values[i]
        for j in range(values.shape[1]):
            total[j] += value[j]
