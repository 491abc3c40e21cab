"""A round as arrays: what goes to other sites, and what they make of it.

The arrays are the dense change (a payload of `codecs`, or float32 numbers as they are), then for each table three: the
gaps between its rising keys, those of the gaps that are too large for their type, and the rows' changes.
What is no such round is refused: no wrong array comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import codec_of, pack, unpack
from dovetail.codecs.payload import Places
from dovetail.runtime.sites.changes import Floats, Keys, RowDeltas, SiteChange
from dovetail.runtime.sites.messages import RoundHead
from dovetail.transport import WireError

Arrays = tuple[NDArray[Any], ...]
A_TABLE = 3
ROW_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a server's part of the parameters is like: the same at every site."""

    num_dense: int
    exact: Places
    """Where in it dense numbers are that no codec touches."""
    tables: Sequence[tuple[int, int]]
    """Of each table, how many rows there may be, and their width."""


def encode(dense: Floats, tables: Sequence[RowDeltas], shapes: Shapes, *, bits: int, seed: int) -> Arrays:
    """Return a round as it goes to others."""
    arrays: list[NDArray[Any]] = [pack(dense, codec_of(bits), seed=seed, exact=shapes.exact)]
    for position, deltas in enumerate(tables):
        values = pack(deltas.values, codec_of(bits, block=ROW_BLOCK), seed=seed + ((position + 1) << 32))
        arrays += [*_gaps(deltas.keys), values]
    return tuple(arrays)


def decode(head: RoundHead, arrays: Sequence[NDArray[Any]], shapes: Shapes, *, who: str) -> SiteChange:
    """Return what a round says, or refuse it."""
    if len(arrays) != 1 + A_TABLE * len(shapes.tables):
        raise WireError(f"a round of {who} has {len(arrays)} arrays for {len(shapes.tables)} tables")
    dense = unpack(
        arrays[0],
        (shapes.num_dense,),
        exact=shapes.exact if arrays[0].dtype == np.uint8 else _NONE,
        where=f"a round of {who}",
    )
    tables = []
    for position, (num_rows, width) in enumerate(shapes.tables):
        gaps, large, values = arrays[1 + A_TABLE * position : 1 + A_TABLE * (position + 1)]
        keys = _keys(gaps, large, num_rows, who)
        rows = unpack(values, (len(keys), width), where=f"a round of {who}")
        rows = rows if rows.flags.writeable else rows.copy()  # or kernels are compiled a second time
        tables.append(RowDeltas(keys, rows))
    if not all(np.isfinite(numbers).all() for numbers in (dense, *(each.values for each in tables))):
        raise WireError(f"a round of {who} has numbers that are not finite")
    return SiteChange(head.samples, dense, tables)


def num_bytes(arrays: Sequence[NDArray[Any]]) -> int:
    """Return how many bytes arrays have."""
    return sum(array.nbytes for array in arrays)


_NONE: Places = np.empty(0, dtype=np.int64)


def _gaps(keys: Keys) -> Arrays:
    """Return the gaps between rising keys in the narrower of two types, and those that it has no room for."""
    gaps = np.diff(keys, prepend=np.int64(-1)) - 1
    kind: type[np.uint8 | np.uint16] = np.uint8 if 8 * (gaps >= 255).sum() < len(gaps) else np.uint16
    most = np.iinfo(kind).max
    return np.minimum(gaps, most).astype(kind), gaps[gaps >= most]


def _keys(gaps: NDArray[Any], large: NDArray[Any], num_rows: int, who: str) -> Keys:
    """Return the keys that gaps are between."""
    if gaps.ndim != 1 or gaps.dtype not in (np.uint8, np.uint16) or large.ndim != 1 or large.dtype != np.int64:
        raise WireError(f"a round of {who} has {gaps.dtype} and {large.dtype} in the place of keys")
    most = np.iinfo(gaps.dtype).max
    whole = gaps.astype(np.int64)
    wide = np.flatnonzero(gaps == most)
    if len(wide) != len(large) or (len(large) and not most <= large.min() <= large.max() < num_rows):
        raise WireError(f"a round of {who} has {len(large)} large gaps between keys, expected {len(wide)}")
    whole[wide] = large
    keys: Keys = np.cumsum(whole + 1) - 1
    if len(keys) and not 0 <= keys[-1] < num_rows:
        raise WireError(f"a round of {who} has keys up to {keys[-1]}, and there are {num_rows} rows")
    return keys
