"""Dense parameters whose numbers always travel as they are: biases, norms, and whatever is small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.blueprint import DenseEntry

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
