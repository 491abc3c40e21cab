"""Rows stepped by the gradients of one task, in `ssp` and `async`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.embedding import Table
from dovetail.runtime.server.attempts import Floats, Keys


def step_rows(table: Table, parts: Sequence[tuple[Keys, Floats]], *, scale: float, factor: float) -> int:
    """Step rows by their gradients times `scale`; a row that is in several parts gets one step. Return how many."""
    keys = parts[0][0] if len(parts) == 1 else np.concatenate([keys for keys, _ in parts])
    gradients = np.empty((len(keys), table.width), dtype=np.float32)
    end = 0
    for _, values in parts:
        begin, end = end, end + len(values)
        np.multiply(values, np.float32(scale), out=gradients[begin:end])
    table.set_rate_factor(factor)
    table.update(keys, gradients)
    return len(keys)
