"""Gradients of a task's rows, applied at once (ssp and async)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.embedding import Table, Whereabouts
from dovetail.runtime.server.attempts import RowGradients


def apply_rows(
    tables: Sequence[Table],
    rows: Sequence[RowGradients],
    wheres: Sequence[Whereabouts | None],
    *,
    scale: float,
    factor: float,
) -> int:
    """Step rows by their gradients times `scale`; a row that is in several parts gets one step. Return how many rows.

    `wheres` says of `rows` where they were when they were pulled; it may be empty.
    """
    known = wheres or [None] * len(rows)
    for position, table in enumerate(tables):
        mine = [place for place, (of_table, _, _) in enumerate(rows) if of_table == position]
        if not mine:
            continue
        table.set_rate_factor(factor)
        if len(mine) == 1:
            _, keys, values = rows[mine[0]]
            values = values.view()
            values.flags.writeable = False  # they are the message's, not ours to scale where they are
            table.update_distinct(keys, values, scale=scale, where=known[mine[0]])
        else:
            scaled = [rows[place][2] * np.float32(scale) for place in mine]
            table.update(np.concatenate([rows[place][1] for place in mine]), np.concatenate(scaled))
    return sum(len(keys) for _, keys, _ in rows)
