"""A log of keys that were evicted or expired: one line `step,event,key` each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding.errors import storage_error


class KeyLog:
    """Appends to a text file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("a", encoding="ascii")
        except OSError as error:
            raise storage_error(path, error, doing="written") from None

    def add(self, step: int, event: str, keys: NDArray[np.int64]) -> None:
        """Write one line a key."""
        try:
            self._file.writelines(f"{step},{event},{key}\n" for key in keys.tolist())
            self._file.flush()
        except OSError as error:
            raise storage_error(self.path, error, doing="written") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
