"""Gradients as whole numbers modulo 2^32, whose sum over all workers never overflows.

With n workers a number x becomes the multiple of a unit that is nearest to it,

    q = round(x / unit),    unit = reach / levels,    levels = floor((2^31 - 1) / n)

and is cut where it is beyond `reach`: |q| <= levels. The sum of n of them is at most 2^31 - 1, so it is known from its
remainder modulo 2^32. A sum of n numbers that were not cut is off by n unit / 2 at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.runtime.errors import TrainingError

Words = NDArray[np.uint32]
LARGEST_SUM = (1 << 31) - 1
MOST_MEMBERS = 1024
"""With more, each would have fewer than two million levels."""

LOSS_BITS = 20
"""Of a loss behind the binary point."""
LOSS_ZERO = 1 << 62
LIMBS, LIMB_BITS = 4, 16
"""A loss is four numbers of 16 bits, whose sums over so many workers fit 32."""


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Numbers up to `reach`, of so many members, of which all are added."""

    reach: float
    members: int

    def __post_init__(self) -> None:
        """Refuse what has no sum, or hardly any levels."""
        if not 1 <= self.members <= MOST_MEMBERS or not 0 < self.reach < float("inf"):
            raise TrainingError(
                f"{self.members} workers would add up numbers up to {self.reach:g} by 32 bits",
                hint=f"masked sums are of up to {MOST_MEMBERS} workers",
            )

    @property
    def levels(self) -> int:
        """Return how many units the largest number has."""
        return LARGEST_SUM // self.members

    @property
    def unit(self) -> float:
        """Return what one level stands for."""
        return self.reach / self.levels

    def add_to(self, words: Words, numbers: NDArray[np.float32]) -> int:
        """Add numbers to words, modulo 2^32; return how many were cut."""
        cut = int(add_rounded(words, numbers, 1.0 / self.unit, float(self.levels)))
        if cut < 0:
            raise TrainingError(
                "a gradient is no number, or infinite", hint="lower the learning rate, or look for broken samples"
            )
        return cut

    def decode(self, total: Words) -> NDArray[np.float32]:
        """Return the sums that words stand for, in which every mask has met its opposite."""
        numbers: NDArray[np.float32] = (total.view(np.int32).astype(np.float64) * self.unit).astype(np.float32)
        return numbers


@njit(cache=True, nogil=True)
def add_rounded(words: Any, numbers: Any, per_unit: Any, levels: Any) -> Any:  # pragma: no cover
    """Add the nearest levels of numbers to words; return how many were cut, -1 where one is none."""
    cut = 0
    for i in range(len(numbers)):
        level = np.rint(np.float64(numbers[i]) * per_unit)
        if not np.isfinite(level):
            return -1
        if level > levels:
            level = levels
            cut += 1
        elif level < -levels:
            level = -levels
            cut += 1
        words[i] += np.uint32(np.int64(level) & 0xFFFFFFFF)
    return cut


def loss_words(loss: float) -> Words:
    """Return a worker's loss, as whole numbers that add up like all others."""
    scaled = max(-LOSS_ZERO + 1, min(LOSS_ZERO - 1, round(loss * (1 << LOSS_BITS)))) + LOSS_ZERO
    return np.array([scaled >> LIMB_BITS * limb & 0xFFFF for limb in range(LIMBS)], dtype=np.uint32)


def loss_of(total: Words, members: int) -> float:
    """Return the loss of all members."""
    whole = sum(int(limb) << LIMB_BITS * place for place, limb in enumerate(total))
    return (whole - members * LOSS_ZERO) / (1 << LOSS_BITS)
