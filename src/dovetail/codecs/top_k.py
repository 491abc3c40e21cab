"""Top-k: the numbers of largest magnitude with their places; the others wait in the residual.

For what is nearly sparse. Without a residual what is left out is lost, so it is never used without one. What is no
number counts as the largest of all, so that it is seen on the other side; nothing is kept of it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Floats
from dovetail.transport import WireError

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SHIFT = np.uint32(16)
NUM_BINS = 1 << 15
MOST_NUMBERS = (1 << 31) - 1
"""Whose places 32 bits hold."""


class TopK:
    """The codec that sends a `part` (0 to 1) of the numbers, at least one, as they are."""

    bits, number = 32, 6

    def __init__(self, part: float) -> None:
        """Choose how many go."""
        self.part = part
        self.name = f"the largest {part:.2%}"

    def _num_sent(self, count: int) -> int:
        """Return how many of `count` numbers go."""
        if count > MOST_NUMBERS:
            raise WireError(f"{self.name} of {count} numbers: there are places for {MOST_NUMBERS} at most")
        return min(count, max(1, round(count * self.part)))

    def encoded_bytes(self, count: int) -> int:
        """Return eight bytes for each that goes: its place and itself."""
        return 8 * self._num_sent(count)

    def encode(self, values: Floats, codes: Bytes, *, seed: int, residual: Floats = NOTHING_KEPT) -> None:
        """Write places, then numbers; which of several alike go is up to their places, not to chance."""
        num_sent = self._num_sent(len(values))
        places, chosen = codes[: 4 * num_sent].view(np.int32), codes[4 * num_sent :].view(np.float32)
        if len(residual):
            residual += values
            encode_largest(residual, places, chosen)
            residual[places] = 0
            if num_sent and not math.isfinite(np.abs(chosen).max()):
                residual[~np.isfinite(residual)] = 0
        else:
            encode_largest(np.ascontiguousarray(values), places, chosen)

    def decode(self, codes: Bytes, values: Floats) -> None:
        """Write the numbers at their places, and zero elsewhere."""
        num_sent = self._num_sent(len(values))
        places, chosen = codes[: 4 * num_sent].view(np.int32), codes[4 * num_sent :].view(np.float32)
        rises = (places[1:] > places[:-1]).all()
        if num_sent and not (places[0] >= 0 and places[-1] < len(values) and rises):
            raise WireError(f"a payload of {self.name} has places that do not rise from 0 to {len(values) - 1}")
        values[:] = 0
        values[places] = chosen


@njit(cache=True, nogil=True, error_model="numpy")
def encode_largest(values, places, chosen):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Find the `len(places)` numbers of largest magnitude, to the 15 upper bits of it, in two passes."""
    bits = values.view(np.uint32)
    counts = np.zeros(NUM_BINS, np.int64)
    for i in range(len(bits)):
        counts[np.uint32(bits[i] & _MAGNITUDE) >> _SHIFT] += 1
    left, limit = len(places), NUM_BINS - 1
    while counts[limit] <= left and limit > 0:
        left -= counts[limit]
        limit -= 1
    sent = 0
    for i in range(len(bits)):
        at = np.uint32(bits[i] & _MAGNITUDE) >> _SHIFT
        if at < limit or (at == limit and left == 0) or sent == len(places):
            continue
        if at == limit:
            left -= 1
        places[sent] = i
        chosen[sent] = values[i]
        sent += 1
