"""How fast numbers become payloads and payloads numbers, beside a copy in memory.

    python benchmarks/codec_speed.py

4 MB of normal numbers, one core, the best of many rounds: GB of float32 a second for encoding (with feedback, as
gradients are, and without), for decoding, and for both together (an array that goes out and one that comes in). The
last line is the slowest width's speed for both in parts of a copy's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ["NUMBA_NUM_THREADS"] = "1"

import numpy as np

from dovetail.codecs import TopK, codec_of, pack, unpack

NUM_BYTES = 4 << 20
ROUNDS = 60


def best_s(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of many rounds; the first, which may compile, does not count."""
    times = []
    for _ in range(ROUNDS + 1):
        begun_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun_s)
    return min(times[1:])


def main() -> None:
    """Print a table, then the ratio."""
    values = np.random.default_rng(0).standard_normal(NUM_BYTES // 4).astype(np.float32)
    residual, copy = np.zeros_like(values), np.empty_like(values)
    gb = values.nbytes / 1e9
    copy_s = best_s(lambda: np.copyto(copy, values))
    print(f"{'GB/s':>18} {'encode':>8} {'+ feedback':>11} {'decode':>8} {'both':>8} {'smaller':>9}")
    print(f"{'memcpy':>18} {gb / copy_s:8.1f}")
    slowest = float("inf")
    for codec in [*(codec_of(bits) for bits in (16, 8, 4, 2, 1)), TopK(0.01)]:
        payload = pack(values, codec, seed=1)
        encode_s = best_s(lambda codec=codec: pack(values, codec, seed=1))
        feedback_s = best_s(lambda codec=codec: pack(values, codec, seed=1, residual=residual))
        decode_s = best_s(lambda payload=payload: unpack(payload, values.shape))
        both = gb / (feedback_s + decode_s)
        slowest = min(slowest, both)
        speeds = f"{gb / encode_s:8.1f} {gb / feedback_s:11.1f} {gb / decode_s:8.1f} {both:8.1f}"
        print(f"{codec.name:>18} {speeds} {values.nbytes / payload.nbytes:8.1f}x")
    print(f"slowest encode + decode / memcpy: {slowest * copy_s / gb:.3f}x")


if __name__ == "__main__":
    main()
