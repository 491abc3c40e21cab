"""Curves with fewer points that look the same: of every stretch the lowest and the highest of each figure are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Column = Sequence[float | None]


def chosen_rows(columns: Mapping[str, Column], shapes: Sequence[str], *, points: int) -> list[int]:
    """Return which rows to keep, about `points` at the most: the first, the last, and what shapes the curves.

    In every stretch of rows each of the `shapes` keeps its lowest and its highest row, so that no peak is lost.
    """
    count = len(next(iter(columns.values()))) if columns else 0
    if count <= points:
        return list(range(count))
    stretches = max(1, points // (2 * max(1, len(shapes))))
    edges = np.linspace(0, count, stretches + 1).astype(int)
    keep = {0, count - 1}
    for name in shapes:
        values = as_numbers(columns[name])
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            piece = values[first:last]
            if piece.size and not np.isnan(piece).all():
                keep |= {first + int(np.nanargmin(piece)), first + int(np.nanargmax(piece))}
    return sorted(keep)


def as_numbers(column: Column) -> NDArray[np.float64]:
    """Return a column with NaN where there is no figure."""
    return np.array([np.nan if value is None else value for value in column], dtype=np.float64)
