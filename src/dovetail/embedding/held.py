"""What a search for the rows of a batch found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Held(NamedTuple):
    """Where the rows of a batch lie: a slot and a code a key, and the distinct slots; see `move_kernels.resolve`."""

    slots: NDArray[np.int32]
    codes: NDArray[np.int32]
    unique: NDArray[np.int32]


class Found(NamedTuple):
    """What a search for a batch found: rows in the host tier, and keys whose rows are not there."""

    held: Held
    num_unique: int
    num_new: int
    absent: NDArray[np.int32]
    absent_at: NDArray[np.int64]
    below: NDArray[np.int64]
