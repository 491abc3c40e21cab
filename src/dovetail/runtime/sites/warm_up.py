"""Everything an exchange compiles, done once before training: no step waits for it then."""

from __future__ import annotations

import numpy as np

from dovetail.runtime.sites.combine import Rule, combined_dense, combined_rows
from dovetail.runtime.sites.key_index import Keys
from dovetail.runtime.sites.messages import RoundHead
from dovetail.runtime.sites.progress import DenseProgress, Floats, RowProgress
from dovetail.runtime.sites.rounds import Shapes, decode, encode

ROWS, WIDTH = 64, 4


class SomeRows:
    """Rows in an array."""

    def __init__(self) -> None:
        """Begin with zeros."""
        self._values = np.zeros((ROWS, WIDTH), dtype=np.float32)

    def read(self, keys: Keys) -> Floats:
        """Return the values of distinct keys."""
        return self._values[keys].copy()

    def write(self, keys: Keys, values: Floats) -> None:
        """Give the rows of distinct keys these values."""
        self._values[keys] = values


def warm_up(bits: int) -> None:
    """Have a round of a few rows go through all that rounds go through, in so many bits."""
    rows, progress, dense = SomeRows(), RowProgress(WIDTH), DenseProgress(np.zeros(ROWS, dtype=np.float32))
    keys = np.arange(ROWS)
    progress.touch(keys, rows)
    rows.write(keys, np.ones((ROWS, WIDTH), dtype=np.float32))
    shapes = Shapes(ROWS, keys[:0], [(ROWS, WIDTH)])
    arrays = encode(dense.rest(np.ones(ROWS, dtype=np.float32)), [progress.rest(rows)], shapes, bits=bits, seed=0)
    part = decode(RoundHead(site=0, round=1, step=1, samples=1, bits=bits), arrays, shapes, who="this site")
    progress.cut(part.tables[0])
    rule = Rule(linear_rows=False, sums=False)
    combined_dense([part, part], rule)
    progress.agree(combined_rows([part, part], 0, rule), part.tables[0], rows)
