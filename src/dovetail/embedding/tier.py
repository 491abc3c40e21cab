"""What every tier can do, whatever it is made of: keep rows at numbered places."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Tier(Protocol):
    """Rows at numbered places; who lies where is the index's business."""

    @property
    def num_rows(self) -> int:
        """Return how many places are taken."""
        ...

    @property
    def used_bytes(self) -> int:
        """Return the bytes the rows take where the tier keeps them."""
        ...

    def write(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.int32]:
        """Keep rows, and return the place of each."""
        ...

    def read(self, keys: NDArray[np.int64], places: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the rows at `places`, which belong to `keys`."""
        ...

    def release(self, places: NDArray[np.int32]) -> None:
        """Give places back."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
