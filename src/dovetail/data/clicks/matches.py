"""`clicks` for models that match: users and the items they clicked, or contexts and what came next."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.clicks.kernels import draw_offsets, near_normal
from dovetail.data.clicks.popularity import rank_table, row_shares
from dovetail.data.clicks.source import best_recall
from dovetail.data.counter import draw, stream_of, substream, unit
from dovetail.data.errors import DataError
from dovetail.data.items import ItemPool
from dovetail.data.schema import Schema, Slot

_PER_SLOT = 128  # draws set aside for a slot: two for each of up to 64 ids

_DENSE_FROM = 1 << 20
_ITEM = 1 << 10  # the slot number under which a sample's item is drawn, beyond all user slots


@njit(cache=True, nogil=True)
def draw_topics(
    stream: np.uint64, first: int, num_samples: int, num_topics: int
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the topic of each sample."""
    topics = np.empty(num_samples, dtype=np.int64)
    for i in range(num_samples):
        own = substream(stream, np.uint64(first + i))
        topics[i] = int(unit(draw(own, np.uint64(1 << 30))) * num_topics)
    return topics


@njit(cache=True, nogil=True)
def draw_rows(
    stream: np.uint64,
    first: int,
    slot: int,
    topics: NDArray[np.int64],
    starts: NDArray[np.int64],
    table: NDArray[np.float64],
    num_topics: int,
    focus: float,
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the rows of one slot: those of sample `first + i` are at `starts[i]` up to `starts[i + 1]`."""
    rows = np.empty(starts[-1], dtype=np.int64)
    num_steps = table.size - 1
    for i in range(topics.size):
        own = substream(stream, np.uint64(first + i))
        for position in range(starts[i], starts[i + 1]):
            number = slot * _PER_SLOT + 2 * (position - starts[i])
            u = unit(draw(own, np.uint64(number))) * num_steps
            step = int(u)
            row = int(table[step] + (u - step) * (table[step + 1] - table[step]))
            if unit(draw(own, np.uint64(number + 1))) < focus:
                row = row - row % num_topics + topics[i]
            rows[position] = row
    return rows


def row_chances(num_rows: int, num_topics: int, focus: float) -> NDArray[np.float64]:
    """Return P(r | t) as an array [T, num_rows].

    Row r of any table belongs to topic r modulo T, and a block of T neighbours holds one row of every topic. A sample
    has a topic t, all equally likely. Each of its ids is a row drawn by popularity, and with probability f (`focus`)
    then replaced by the row of topic t in the same block:

        P(r | t) = f [r mod T = t] P(block of r) + (1 - f) P(r)
    """
    shares = row_shares(num_rows)
    blocks = shares.reshape(-1, num_topics).sum(axis=1)
    of_topic = np.arange(num_rows)[None, :] % num_topics == np.arange(num_topics)[:, None]
    return np.asarray(focus * of_topic * np.repeat(blocks, num_topics)[None, :] + (1.0 - focus) * shares[None, :])


def topic_chances(
    rows: NDArray[np.int64], starts: NDArray[np.int64], chances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log P(rows of a sample | t) for every sample and topic, as an array [n, T]."""
    each = np.log(chances[:, rows].T)
    cumulated = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
    return np.asarray(cumulated[starts[1:]] - cumulated[starts[:-1]])


@njit(cache=True, nogil=True)
def draw_item_features(
    stream: np.uint64, items: NDArray[np.int64], rows_per_slot: NDArray[np.int64], num_topics: int, num_dense: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:  # pragma: no cover
    """Return the rows [n, s] and the numbers [n, d] of items: slot 0 is the item itself, slot 1 its topic."""
    rows = np.empty((items.size, rows_per_slot.size), dtype=np.int64)
    dense = np.empty((items.size, num_dense), dtype=np.float32)
    for i in range(items.size):
        own = substream(stream, np.uint64(items[i]))
        for slot in range(rows_per_slot.size):
            rows[i, slot] = int(unit(draw(own, np.uint64(slot))) * rows_per_slot[slot])
        rows[i, 0] = items[i]
        if rows_per_slot.size > 1:
            rows[i, 1] = items[i] % num_topics
        for feature in range(num_dense):
            dense[i, feature] = near_normal(draw(own, np.uint64(_DENSE_FROM + feature)))
    return rows, dense


def pool_of(rows: NDArray[np.int64], dense: NDArray[np.float32], first_keys: NDArray[np.int64]) -> ItemPool:
    """Return the pool of items with these rows, under the keys of their slots."""
    return ItemPool(ids=torch.from_numpy(rows + first_keys[None, :]), dense=torch.from_numpy(dense))


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Samples of a user (or a context) and the item that followed; see `dovetail.data.clicks.matches` for which.

    The first `num_user_slots` slots describe the user; the others, and the numbers, the item. Every label is 1: what
    was not clicked is for the model to draw.
    """

    seed: int = 0
    num_samples: int | None = None
    num_user_slots: int = 12
    user_values: float = 1.0
    """The mean number of ids in each of the user's slots."""
    num_item_slots: int = 14
    num_dense: int = 13
    num_items: int = 20_000
    rows_per_user_slot: int = 20_000
    num_topics: int = 20
    focus: float = 0.5
    """The probability with which an id is of the sample's topic for that reason."""
    schema: Schema = field(init=False)

    def __post_init__(self) -> None:
        """Refuse sizes that topics do not divide."""
        for name in ("num_items", "rows_per_user_slot"):
            value = getattr(self, name)
            if value < self.num_topics or value % self.num_topics:
                raise DataError(
                    f"matches: {name} is {value}, not a multiple of num_topics = {self.num_topics}",
                    hint=f"set it to {max(1, round(value / self.num_topics)) * self.num_topics}",
                )
        if not 0.0 < self.focus < 1.0:
            raise DataError(f"matches: focus is {self.focus}", hint="`focus` is a probability between 0 and 1")
        if min(self.num_user_slots, self.num_item_slots) < 1:
            raise DataError("matches: a user or an item has no slots", hint="give each at least one slot")
        object.__setattr__(self, "schema", self._schema())

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        if self.num_samples is not None:
            first, last = min(first, self.num_samples), min(last, self.num_samples)
        num_samples = last - first
        user_offsets, user_rows = self._user_rows(first, last)
        item_rows, dense = self._item_features(self._items(first, last))
        keys = np.array([slot.first_key for slot in self.schema.slots], dtype=np.int64)
        lengths = np.ones((num_samples, self.schema.num_slots), dtype=np.int64)
        lengths[:, : self.num_user_slots] = np.diff(user_offsets).reshape(num_samples, self.num_user_slots)
        offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
        slot_of = np.repeat(np.tile(np.arange(self.schema.num_slots), num_samples), lengths.reshape(-1))
        ids = np.empty(offsets[-1], dtype=np.int64)
        ids[slot_of < self.num_user_slots] = user_rows
        ids[slot_of >= self.num_user_slots] = item_rows.reshape(-1)
        return Batch(
            sample_ids=torch.arange(first, last),
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids + keys[slot_of]),
            offsets=torch.from_numpy(offsets),
            labels=torch.ones(num_samples),
        )

    def items(self) -> ItemPool:
        """Return all items."""
        rows, dense = self._item_features(np.arange(self.num_items))
        keys = [slot.first_key for slot in self.schema.slots[self.num_user_slots :]]
        return pool_of(rows, dense, np.array(keys, dtype=np.int64))

    def clicked_items(self, first: int, last: int) -> torch.Tensor:
        """Return the index of the item in each of a range of samples."""
        return torch.from_numpy(self._items(first, last))

    def best_recall(self, k: int, num_samples: int = 2_000) -> float:
        """Return the recall@k over all items that no model can beat, by Bayes' rule from the truth.

        P(item | user) = sum over t of P(t | user's ids) P(item | t).
        """
        if self.num_samples is not None:
            num_samples = min(num_samples, self.num_samples)
        offsets, rows = self._user_rows(0, num_samples)
        of_user = row_chances(self.rows_per_user_slot, self.num_topics, self.focus)
        log_chance = topic_chances(rows, offsets[:: self.num_user_slots], of_user)
        posterior = np.exp(log_chance - log_chance.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        of_item = row_chances(self.num_items, self.num_topics, self.focus)
        return best_recall(posterior @ of_item, k)

    def _user_rows(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets and rows of the user's slots."""
        stream = stream_of(self.seed, "matches")
        topics = draw_topics(stream, first, last - first, self.num_topics)
        lengths_stream = stream_of(self.seed, "match lengths")
        offsets = draw_offsets(lengths_stream, first, last - first, np.full(self.num_user_slots, self.user_values))
        rows = np.empty(offsets[-1], dtype=np.int64)
        table = rank_table(self.rows_per_user_slot)
        lengths = np.diff(offsets).reshape(-1, self.num_user_slots)
        slot_of = np.repeat(np.tile(np.arange(self.num_user_slots), last - first), lengths.reshape(-1))
        for slot in range(self.num_user_slots):
            starts = np.concatenate([[0], np.cumsum(lengths[:, slot])])
            drawn = draw_rows(stream, first, slot, topics, starts, table, self.num_topics, self.focus)
            rows[slot_of == slot] = drawn
        return offsets, rows

    def _items(self, first: int, last: int) -> NDArray[np.int64]:
        stream = stream_of(self.seed, "matches")
        topics = draw_topics(stream, first, last - first, self.num_topics)
        starts = np.arange(last - first + 1)
        table = rank_table(self.num_items)
        return np.asarray(draw_rows(stream, first, _ITEM, topics, starts, table, self.num_topics, self.focus))

    def _item_features(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows and numbers of items."""
        rows_per_slot = np.array([slot.num_keys for slot in self.schema.slots[self.num_user_slots :]], dtype=np.int64)
        stream = stream_of(self.seed, "items")
        rows, dense = draw_item_features(stream, items, rows_per_slot, self.num_topics, self.num_dense)
        return rows, dense

    def _schema(self) -> Schema:
        sizes = [self.rows_per_user_slot] * self.num_user_slots
        sizes += [self.num_items, *[max(self.num_topics, self.num_items // 20)] * (self.num_item_slots - 1)]
        names = [f"user{i + 1}" for i in range(self.num_user_slots)]
        names += [f"item{i + 1}" for i in range(self.num_item_slots)]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return Schema(
            dense=tuple(f"number{i + 1}" for i in range(self.num_dense)),
            slots=tuple(
                Slot(
                    name=name,
                    num_keys=size,
                    first_key=int(start),
                    multi_valued=position < self.num_user_slots and self.user_values > 1,
                )
                for position, (name, size, start) in enumerate(zip(names, sizes, starts, strict=False))
            ),
        )
