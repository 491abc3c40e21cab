"""What a width costs in processor time on this machine: measured once, when somebody first thinks of using it."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of

NUMBERS = 1 << 16
REPEATS = 4
"""The first compiles; of the others the fastest counts."""


@cache
def coding_s(bits: int) -> float:
    """Return the seconds that one byte of float32 numbers takes to be coded, something kept back, and read again."""
    codec = codec_of(bits)
    if codec is None:
        return 0.0
    numbers = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    kept = np.zeros_like(numbers)
    took_s = []
    for _ in range(REPEATS):
        begun_s = time.thread_time()
        unpack(pack(numbers, codec, seed=0, residual=kept), numbers.shape)
        took_s.append(time.thread_time() - begun_s)
    return min(took_s[1:]) / numbers.nbytes
