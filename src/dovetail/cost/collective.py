"""What it takes to sum a payload over many workers, as formulas.

With w workers, n bytes, a latency `a` a message, `b` seconds a byte on the wire and `g` seconds a byte added up:

    ring               2 (w - 1) a   + 2 (w - 1)/w n b + (w - 1)/w n g
    halving-doubling   2 log2(w) a   + 2 (w - 1)/w n b + (w - 1)/w n g        w a power of two
    binary blocks      halving-doubling inside blocks of powers of two, then from block to block and back

One worker has nobody to talk to and costs zero. All three move at the pace of their slowest link.
"""

from __future__ import annotations

import itertools
from typing import Literal

from dovetail.errors import DovetailError

Algorithm = Literal["ring", "halving-doubling", "binary-blocks", "best"]


def ring_all_reduce_seconds(
    payload_bytes: float, *, num_workers: int, byte_s: float, latency_s: float = 0.0, reduce_byte_s: float = 0.0
) -> float:
    """Return the seconds of a ring: reduce-scatter and all-gather take w - 1 hops of payload / w bytes each."""
    _check_workers(num_workers)
    share = (num_workers - 1) / num_workers
    return 2 * (num_workers - 1) * latency_s + share * payload_bytes * (2 * byte_s + reduce_byte_s)


def halving_doubling_seconds(
    payload_bytes: float, *, num_workers: int, byte_s: float, latency_s: float = 0.0, reduce_byte_s: float = 0.0
) -> float:
    """Return the seconds of recursive halving and doubling, for a power of two of workers.

    Each of log2(w) steps swaps half of what the last one did, so the bytes are those of a ring and the messages few.
    """
    _check_workers(num_workers)
    if num_workers & (num_workers - 1):
        raise DovetailError(
            f"halving-doubling needs a power of two of workers, not {num_workers}", hint="use binary blocks"
        )
    steps = num_workers.bit_length() - 1
    share = (num_workers - 1) / num_workers
    return 2 * steps * latency_s + share * payload_bytes * (2 * byte_s + reduce_byte_s)


def binary_blocks_seconds(
    payload_bytes: float, *, num_workers: int, byte_s: float, latency_s: float = 0.0, reduce_byte_s: float = 0.0
) -> float:
    """Return the seconds of binary blocks: w as a sum of powers of two, each block halving and doubling on its own.

    Blocks work at once, so the largest decides. Then each block hands its sums to the next larger one, smallest first:
    a worker of a block of s holds n/s bytes and spreads them over L/s workers of the block of L, which add n/L each;
    the result comes back the same way. For a power of two there is one block, and this is halving-doubling.
    """
    _check_workers(num_workers)
    blocks = [1 << bit for bit in range(num_workers.bit_length()) if num_workers >> bit & 1]
    seconds = halving_doubling_seconds(
        payload_bytes, num_workers=blocks[-1], byte_s=byte_s, latency_s=latency_s, reduce_byte_s=reduce_byte_s
    )
    for small, large in itertools.pairwise(blocks):
        one_way_s = (large // small) * latency_s + payload_bytes / small * byte_s
        seconds += 2 * one_way_s + payload_bytes / large * reduce_byte_s
    return seconds


def all_reduce_seconds(
    payload_bytes: float,
    *,
    num_workers: int,
    byte_s: float,
    latency_s: float = 0.0,
    reduce_byte_s: float = 0.0,
    algorithm: Algorithm = "best",
) -> float:
    """Return the seconds of an all-reduce by the algorithm named; `best` is the faster of ring and binary blocks."""
    links = {"byte_s": byte_s, "latency_s": latency_s, "reduce_byte_s": reduce_byte_s}
    if algorithm == "ring":
        return ring_all_reduce_seconds(payload_bytes, num_workers=num_workers, **links)
    if algorithm == "halving-doubling":
        return halving_doubling_seconds(payload_bytes, num_workers=num_workers, **links)
    blocks_s = binary_blocks_seconds(payload_bytes, num_workers=num_workers, **links)
    if algorithm == "binary-blocks":
        return blocks_s
    return min(blocks_s, ring_all_reduce_seconds(payload_bytes, num_workers=num_workers, **links))


def _check_workers(num_workers: int) -> None:
    """Refuse a sum over nobody."""
    if num_workers < 1:
        raise DovetailError(f"{num_workers} workers cannot sum anything", hint="use at least one worker")
