"""Who is shown what when tastes come in topics: the distribution of items given a user, known exactly.

Row r of any table belongs to topic r modulo T, and a block of T neighbours holds one row of every topic. A sample has a
topic t, all equally likely. Each of its ids is a row drawn by popularity, and with probability f (`focus`) then
replaced by the row of topic t in the same block:

    P(r | t) = f [r mod T = t] P(block of r) + (1 - f) P(r)
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.data.clicks.popularity import row_shares
from dovetail.data.counter import draw, substream, unit

_PER_SLOT = 128  # draws set aside for a slot: two for each of up to 64 ids


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
    """Return P(r | t) as an array [T, num_rows]."""
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
