"""Dense parameters in fewer bits: what each reader holds, and how far that is from what is.

A reader gets the parameters as they are once, and then coded differences. Both sides add what the codes stand for, so
the server knows to the bit what the reader holds, and the next difference makes up for what the codes fell short of.
What is no number would stay with a reader for ever: after that it gets the parameters as they are again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import codec_of, pack, unpack
from dovetail.runtime.blueprint import DenseEntry
from dovetail.transport import name_in

Floats = NDArray[np.float32]
MOST_READERS = 64


@dataclass(slots=True)
class ReaderCopy:
    """What a reader holds, and what that is called."""

    number: int
    values: Floats


class ReaderCopies:
    """What every reader holds, by its connection; of those not heard of for longest nothing is known."""

    def __init__(self, exact: NDArray[np.int64]) -> None:
        """Keep nothing yet; numbers at the places `exact` travel as they are."""
        self._exact = exact
        self._copies: OrderedDict[bytes, ReaderCopy] = OrderedDict()
        self._last = 0

    def forget(self, worker: str) -> None:
        """Forget what the connections of a worker that is gone held."""
        for reader in [reader for reader in self._copies if name_in(reader) == worker]:
            del self._copies[reader]

    def answer(self, reader: bytes, values: Floats, *, base: int, bits: int) -> tuple[NDArray[Any], int]:
        """Return the array for a reader that holds `base`, and what it holds then."""
        if bits == 32 or not len(values):
            self._copies.pop(reader, None)
            return values, -1
        self._last += 1
        copy = self._copies.pop(reader, None)
        if copy is None or copy.number != base or len(copy.values) != len(values):
            self._copies[reader] = ReaderCopy(self._last, values.copy())
            while len(self._copies) > MOST_READERS:
                self._copies.popitem(last=False)
            return values, self._last
        nearest = np.zeros(len(values), dtype=np.float32)  # as a residual: codes need not be right in the mean
        payload = pack(values - copy.values, codec_of(bits), seed=self._last, residual=nearest, exact=self._exact)
        copy.values += unpack(payload, values.shape, exact=self._exact)
        if np.isfinite(copy.values).all():
            copy.number = self._last
            self._copies[reader] = copy
        return payload, self._last


SMALL = 1024
"""A tensor of fewer numbers is not worth a codec, and as a rule sensitive to one."""


def exact_places(entries: Sequence[DenseEntry], part: slice) -> NDArray[np.int64]:
    """Return where in a part of the dense vector numbers are that no codec touches."""
    found = [
        np.arange(max(part.start, entry.offset), min(part.stop, entry.offset + entry.size)) - part.start
        for entry in entries
        if len(entry.shape) <= 1 or entry.size < SMALL
    ]
    places: NDArray[np.int64] = np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)
    return places
