"""What every codec is: numbers in, fewer bytes out, and back again."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
NOTHING_KEPT: Floats = np.empty(0, dtype=np.float32)
"""In the place of a residual, where nobody keeps one."""


class Codec(Protocol):
    """Turns a vector of float32 numbers into bytes and back; every call is serial and lets other threads run."""

    @property
    def number(self) -> int:
        """What a payload calls the codec; never changes."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def encoded_bytes(self, count: int) -> int:
        """Return how many bytes `count` numbers become."""
        ...

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write the codes of `values`.

        Without a residual the codes are unbiased: over all seeds their mean is what went in. With one, what is encoded
        is `values + residual`, and what the codes fall short of it is left in `residual`.
        """
        ...

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write the numbers that codes stand for; raise `WireError` where they stand for none."""
        ...
