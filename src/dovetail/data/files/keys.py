"""Stable ids for categories: the same text in the same slot has the same id, today and on every machine."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.data.counter import stream_of
from dovetail.splitmix import mix

KEY_MASK = np.uint64((1 << 63) - 1)
_FNV_PRIME = np.uint64(0x100000001B3)


def slot_salt(slot: str) -> np.uint64:
    """Return what tells the ids of one slot from those of another."""
    return stream_of(0, f"slot/{slot}")


@njit(cache=True, nogil=True)
def key_of_bytes(text: NDArray[np.uint8], begin: int, end: int, salt: np.uint64) -> np.int64:  # pragma: no cover
    """Return the id of text[begin:end] in the slot with this salt: 63 bits, FNV-1a and then mixed."""
    word = salt
    for position in range(begin, end):
        word = (word ^ np.uint64(text[position])) * _FNV_PRIME
    return np.int64(mix(word) & KEY_MASK)


@njit(cache=True, nogil=True)
def keys_of_strings(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], salt: np.uint64
) -> NDArray[np.int64]:  # pragma: no cover
    """Return the ids of many strings that lie one after the other."""
    keys = np.empty(offsets.size - 1, dtype=np.int64)
    for i in range(offsets.size - 1):
        keys[i] = key_of_bytes(text, offsets[i], offsets[i + 1], salt)
    return keys
