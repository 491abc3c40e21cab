"""How many of a batch's distinct rows will be in a tier of so many rows, foretold from how often rows were looked up.

Where n(c) rows were looked up by c batches, those rows will be asked for (c + 1) n(c + 1) times in as many batches to
come, and rows that nobody has seen yet n(1) times (Good and Turing). Of rows that were seen often, which are few, it is
taken that they go on as they were. A tier that lets the least counted rows go has the rows of the largest counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PARTS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""For which parts of all rows the ratio is told."""
SELDOM = 8
"""Rows seen fewer times are many, so that their numbers tell of each other."""


def hit_ratio(rows_by_count: NDArray[np.int64], num_rows: int) -> float:
    """Return the part of look-ups that a tier of `num_rows` will have, where rows_by_count[c] rows were seen c times.

    A look-up is one distinct row of one batch. Those of new rows are misses, however large the tier is.
    """
    counts = np.arange(len(rows_by_count))
    seen = (counts * rows_by_count).astype(np.float64)
    if not seen.sum():
        return 0.0
    to_come = _to_come(seen)
    hits, left = 0.0, num_rows
    for count in range(len(counts) - 1, 0, -1):
        if (rows := int(rows_by_count[count])) and left > 0:
            hits += to_come[count] * min(1.0, left / rows)
            left -= rows
    return float(hits / seen.sum())


def least_rows(rows_by_count: NDArray[np.int64], ratio: float) -> int | None:
    """Return the size of the smallest tier whose hit ratio is `ratio` or more; None where no size is enough."""
    fewest, most = 0, int(rows_by_count.sum())
    if hit_ratio(rows_by_count, most) < ratio:
        return None
    while fewest < most:  # more rows never hit less
        middle = (fewest + most) // 2
        if hit_ratio(rows_by_count, middle) < ratio:
            fewest = middle + 1
        else:
            most = middle
    return most


def _to_come(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how often the rows seen c times will be asked for; all together as often as all but new rows were."""
    gaps = np.flatnonzero(seen[1 : SELDOM + 1] == 0)
    seldom = max(1, int(gaps[0])) if len(gaps) else min(SELDOM, len(seen) - 1)
    to_come = seen.copy()
    to_come[:seldom] = seen[1 : seldom + 1]
    often = to_come[seldom:].sum()
    if often:
        to_come[seldom:] *= max(0.0, seen[2:].sum() - to_come[1:seldom].sum()) / often
    return to_come


def by_parts(counts: NDArray[np.int32]) -> list[tuple[int, float]]:
    """Return (rows of the tier, hit ratio) for parts of all rows, given how often each row was looked up."""
    if not len(counts):
        return []
    rows_by_count = np.bincount(counts)
    sizes = [max(1, int(part * len(counts))) for part in PARTS]
    return [(size, hit_ratio(rows_by_count, size)) for size in sizes]
