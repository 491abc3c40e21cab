"""Arrays as bytes: which types travel, and views over what arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dovetail.transport.errors import WireError

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Unwritten:
    """An array that is elsewhere, such as on a GPU, and is written straight to where it goes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    write: Callable[[Array], None]
    """Fills an array of that shape and type."""

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self.dtype.itemsize * math.prod(self.shape)

    def written(self) -> Array:
        """Return it in memory of its own."""
        array: Array = np.empty(self.shape, self.dtype)
        self.write(array)
        return array


Sendable = Array | Unwritten
MOST_ARRAYS = 4096
MOST_DIMENSIONS = 16
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float16", "uint16", "int64", "int32", "int8", "uint8", "bool")
}
"""What travels, in the byte order of every machine we know (little). bfloat16, which numpy lacks, goes as uint16."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Length = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class ArrayClaim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a header says about an array."""

    dtype: str
    shape: Annotated[tuple[Length, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]

    def nbytes(self) -> int:
        """Return how many bytes the array must have."""
        dtype = DTYPES.get(self.dtype)
        if dtype is None:
            raise WireError(f"an array claims the type {self.dtype[:40]!r}, known are {', '.join(DTYPES)}")
        return dtype.itemsize * math.prod(self.shape)

    def over(self, buffer: Any, offset: int = 0) -> Array:
        """Return the array that lies in `buffer`, read-only; its length must have been checked."""
        array: Array = np.ndarray(self.shape, DTYPES[self.dtype], buffer, offset)
        if not array.flags.aligned:  # Kernels compiled for aligned arrays would be compiled again for these.
            array = array.copy()
        array.flags.writeable = False
        if self.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise WireError("an array of bool has bytes other than 0 and 1")
        return array


def claims_of(arrays: Sequence[Sendable], most_bytes: int) -> list[ArrayClaim]:
    """Return what the header says about these arrays; each may have at most `most_bytes`."""
    if len(arrays) > MOST_ARRAYS:
        raise WireError(f"a message has {len(arrays)} arrays, at most {MOST_ARRAYS} go", hint="join them")
    claims = []
    for array in arrays:
        name = NAMES.get(array.dtype)
        if name is None:
            raise WireError(f"arrays of {array.dtype} do not travel", hint=f"make it one of {', '.join(DTYPES)}")
        if array.nbytes > most_bytes:
            raise WireError(f"an array has {array.nbytes} bytes, the limit is {most_bytes}", hint="send it in parts")
        claims.append(ArrayClaim(name, array.shape))
    return claims


def as_frame(array: Sendable) -> Buffer:
    """Return the bytes of an array, without a copy where they lie in one piece."""
    if isinstance(array, Unwritten):
        array = array.written()
    if array.size == 0:
        return b""  # memoryview cannot cast these
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.data.cast("B")
