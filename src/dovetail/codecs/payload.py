"""Arrays for a link and from it: the one place where numbers become payloads, and payloads numbers.

A payload is an array of bytes, little-endian, every part on a multiple of 8:

    b"DVC1", number of the codec (1), dimensions (1), block (2)     how it was made
    part of the numbers that go, of top-k (8)
    count of exact numbers (8)
    checksum of all other bytes (8)
    the shape (8 each), the exact numbers (4 each), the codes

What is no whole payload is refused, whatever its bytes: no array comes of it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.codecs.codec import NOTHING_KEPT, Bytes, Codec, Floats
from dovetail.codecs.registry import codec_numbered
from dovetail.codecs.top_k import TopK
from dovetail.splitmix import GOLDEN, mix
from dovetail.transport import WireError

MAGIC = b"DVC1"
HEAD = struct.Struct("<4sBBHdQQ")
_AT_WORD = 3
"""Where a payload has its checksum: whatever is there counts as zero."""
CHECKSUM_AT = 8 * _AT_WORD
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)
_47 = np.uint64(47)
MOST_DIMENSIONS = 16
MOST_NUMBERS = 1 << 40
LARGEST_SEED = (1 << 63) - 1
Places = NDArray[np.int64]
NO_PLACES: Places = np.empty(0, dtype=np.int64)


def pack(
    values: NDArray[np.float32],
    codec: Codec | None,
    *,
    seed: int = 0,
    residual: Floats = NOTHING_KEPT,
    exact: Places = NO_PLACES,
) -> NDArray[Any]:
    """Return an array as it goes over a link: its payload by a codec, or itself where there is none.

    Numbers at the places `exact` (of the flattened array) go as they are. A `residual`, as long as the array, is added
    before and has what is missing after.
    """
    if codec is None or not values.size:
        return values
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    kept = flat[exact]
    if len(exact):
        flat = flat.copy()
        flat[exact] = 0
    begin, size = _offsets(values.ndim, len(exact), codec.encoded_bytes(len(flat)))
    payload = np.empty(size, dtype=np.uint8)
    payload[-8:] = 0  # what fills the last word up
    block, part = getattr(codec, "block", 0), getattr(codec, "part", 0.0)
    head = HEAD.pack(MAGIC, codec.number, values.ndim, block, part, len(exact), 0)
    payload[: HEAD.size] = np.frombuffer(head, dtype=np.uint8)
    payload[HEAD.size : HEAD.size + 8 * values.ndim].view(np.int64)[:] = values.shape
    middle = HEAD.size + 8 * values.ndim
    if len(exact):
        payload[begin - 8 : begin] = 0
        payload[middle : middle + 4 * len(exact)].view(np.float32)[:] = kept
    codes = payload[begin : begin + codec.encoded_bytes(len(flat))]
    codec.encode(flat, codes, seed=seed & LARGEST_SEED, residual=residual)
    if len(residual):
        residual[exact] = 0
    payload[CHECKSUM_AT : CHECKSUM_AT + 8].view(np.uint64)[0] = checksum(payload.view(np.uint64))
    return payload


def unpack(
    array: NDArray[Any], shape: Sequence[int] | None = None, *, exact: Places = NO_PLACES, where: str = "a message"
) -> Floats:
    """Return the numbers in what came over a link, be it a payload or plain float32; `WireError` where it is neither.

    With a `shape`, that of the array must be the same; without one top-k is refused, for a few of its bytes could
    stand for an array of any size. `exact` must be as it was for `pack`.
    """
    if array.dtype == np.float32:
        if shape is not None and array.shape != tuple(shape):
            raise WireError(f"{where} has an array of {list(array.shape)}, expected {list(shape)}")
        return array
    if array.dtype != np.uint8 or array.ndim != 1:
        raise WireError(f"{where} has {array.dtype}{list(array.shape)} in the place of numbers")
    payload = _aligned(array)
    codec, found, num_exact = _read_head(payload, where)
    if shape is not None and found != tuple(shape):
        raise WireError(f"{where} has a payload of {list(found)}, expected {list(shape)}")
    if shape is None and codec.number == TopK.number:
        raise WireError(f"{where} has a payload of {codec.name}, whose size is known to nobody")
    if num_exact != len(exact):
        raise WireError(f"{where} has a payload with {num_exact} exact numbers, expected {len(exact)}")
    values: Floats = np.empty(found, dtype=np.float32)
    flat = values.reshape(-1)
    encoded = codec.encoded_bytes(len(flat))
    begin, _ = _offsets(len(found), num_exact, encoded)
    codec.decode(payload[begin : begin + encoded], flat)
    if num_exact:
        middle = HEAD.size + 8 * len(found)
        flat[exact] = payload[middle : middle + 4 * num_exact].view(np.float32)
    return values


def _read_head(payload: Bytes, where: str) -> tuple[Codec, tuple[int, ...], int]:
    """Return codec, shape and count of exact numbers of a payload that is whole, or refuse it."""
    if len(payload) < HEAD.size or bytes(payload[:4]) != MAGIC:
        raise WireError(f"{where} has {len(payload)} bytes that are no payload: it begins with {MAGIC!r}")
    _, number, dimensions, block, part, num_exact, _ = HEAD.unpack(bytes(payload[: HEAD.size]))
    shape_end = HEAD.size + 8 * dimensions
    if len(payload) % 8 or not 1 <= dimensions <= MOST_DIMENSIONS or len(payload) < shape_end:
        raise WireError(f"{where} has a payload of {dimensions} dimensions in {len(payload)} bytes: it is cut off")
    is_block = number not in (2, 4, 5, 7) or (8 <= block <= 64 and block % 8 == 0)
    codec = codec_numbered(number, block=block, part=part) if is_block and 0.0 <= part <= 1.0 else None
    if codec is None:
        raise WireError(f"{where} has a payload of codec {number} with blocks of {block}, which is none")
    shape = tuple(int(length) for length in payload[HEAD.size : shape_end].view(np.int64))
    count = math.prod(shape)
    if min(shape) <= 0 or count > MOST_NUMBERS or num_exact > count:
        raise WireError(f"{where} has a payload of shape {list(shape)} with {num_exact} exact numbers")
    expected = _offsets(dimensions, num_exact, codec.encoded_bytes(count))[1]
    if len(payload) != expected:
        raise WireError(f"{where} has a payload of {len(payload)} bytes, {list(shape)} by {codec.name} is {expected}")
    words = payload.view(np.uint64)
    if int(checksum(words)) != int(words[_AT_WORD]):
        raise WireError(f"{where} has a payload with a wrong checksum")
    return codec, shape, num_exact


def _offsets(dimensions: int, num_exact: int, encoded: int) -> tuple[int, int]:
    """Return where the codes begin, and how many bytes the whole payload has."""
    begin = HEAD.size + 8 * dimensions + -(-4 * num_exact // 8) * 8
    return begin, begin + -(-encoded // 8) * 8


def _aligned(array: NDArray[np.uint8]) -> Bytes:
    """Return bytes that begin on a multiple of 8, in one piece; kernels are compiled for these."""
    if array.flags.c_contiguous and array.ctypes.data % 8 == 0:
        return array
    copy: Bytes = np.empty(-(-len(array) // 8), dtype=np.uint64).view(np.uint8)[: len(array)]
    copy[:] = array
    return copy


@njit(cache=True, nogil=True)
def checksum(words):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 64 bits that no change of a single word leaves as they are, and other changes leave once in 2 ** 64.

    At the speed of memory: four streams of words, each word decides all bits of its stream. There are at least four.

    Two other sums of words earn their place. A row on disk (`embedding.tiers.disk.record`) is short: its own takes 3.4
    ns where this one takes 14.7 (144 bytes), most of it at the end. That of the redo log is summed up in parts while
    words are copied, and takes 128 bits for the same promise; logs of the version before have it.
    """
    a, b, c, d = GOLDEN, mix(GOLDEN + _1), mix(GOLDEN + _2), mix(GOLDEN + _3)
    d ^= words[_AT_WORD]  # so that the loop, which brings it in, brings in nothing
    whole = len(words) // 4 * 4
    for i in range(0, whole, 4):
        a = (a ^ words[i]) * _FACTOR
        b = (b ^ words[i + 1]) * _FACTOR
        c = (c ^ words[i + 2]) * _FACTOR
        d = (d ^ words[i + 3]) * _FACTOR
        a, b, c, d = a ^ (a >> _47), b ^ (b >> _47), c ^ (c >> _47), d ^ (d >> _47)
    for i in range(whole, len(words)):
        a = mix((a ^ words[i]) * _FACTOR)
    return mix(a + mix(b + mix(c + mix(d + np.uint64(len(words))))))
