"""Streams of random numbers by name: where every draw begins."""

from __future__ import annotations

import hashlib


def stream_number(seed: int, purpose: str) -> int:
    """Return the 64-bit stream of a seed for one purpose; unlike purposes never share draws."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "little")
