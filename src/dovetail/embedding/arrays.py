"""What users hand in, as the arrays that kernels take; everything else is refused with its shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding.errors import TableError
from dovetail.embedding.hashing import shard_of


def as_keys(keys: ArrayLike) -> NDArray[np.int64]:
    """Return keys as a contiguous int64 vector."""
    array = np.asarray(keys)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TableError(f"keys are {array.dtype} of shape {array.shape}", hint="give a vector of whole numbers")
    return np.ascontiguousarray(array, dtype=np.int64)


def as_gradients(gradients: ArrayLike, num_rows: int, width: int, *, what: str = "gradients") -> NDArray[np.float32]:
    """Return gradients, or others of their shape, as contiguous float32 [num_rows, width]."""
    array = np.ascontiguousarray(gradients, dtype=np.float32)
    if array.shape != (num_rows, width):
        raise TableError(f"{what} have the shape {array.shape}", hint=f"they should have {(num_rows, width)}")
    return array


def check_bags(begins: NDArray[np.int64], ends: NDArray[np.int64], num_keys: int) -> None:
    """Refuse bags that reach beyond the keys."""
    if begins.shape != ends.shape or (
        len(begins) and (begins.min() < 0 or ends.max() > num_keys or (ends < begins).any())
    ):
        raise TableError(
            f"bags from {begins.min(initial=0)} to {ends.max(initial=0)} do not lie within {num_keys} keys",
            hint=f"each begins at 0 or later, ends where it begins or later, and at {num_keys} at most",
        )


def as_bags(offsets: ArrayLike, num_keys: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each bag begins and ends; offsets have one number more than there are bags."""
    array = np.ascontiguousarray(offsets, dtype=np.int64)
    if mode not in ("sum", "mean"):
        raise TableError(f"a table pools by `{mode}`", hint="choose `sum` or `mean`")
    if array.ndim != 1 or not len(array) or array[0] != 0 or array[-1] != num_keys or (np.diff(array) < 0).any():
        raise TableError(
            f"offsets of shape {array.shape} do not divide {num_keys} keys into bags",
            hint=f"they start with 0, never fall, and end with {num_keys}",
        )
    return array[:-1], array[1:]


def in_bag_order(
    keys: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of the bags, bag after bag, and where each bag lies among them."""
    lengths = ends - begins
    new_ends = np.cumsum(lengths)
    new_begins = new_ends - lengths
    if np.array_equal(new_begins, begins) and (new_ends[-1] if len(ends) else 0) == len(keys):
        return keys, begins, ends
    shifts = np.repeat(begins - new_begins, lengths)
    return keys[shifts + np.arange(len(shifts))], new_begins, new_ends


def own_keys(keys: NDArray[np.int64], shard: int, num_shards: int) -> NDArray[np.int64]:
    """Return keys that all belong to `shard`; others are refused."""
    if num_shards > 1 and len(keys):
        foreign = shard_of(keys, num_shards) != shard
        if foreign.any():
            raise TableError(
                f"key {keys[foreign][0]} does not belong to shard {shard} of {num_shards}",
                hint="route keys by dovetail.embedding.shard_of(keys, num_shards)",
            )
    return keys
