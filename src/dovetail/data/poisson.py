"""Batches that are drawn by chance, as private training needs them: every sample is in every step with the same chance.

What is counted as spent holds for batches drawn so (Poisson sampling), and for no order that is shuffled and cut. A
step's samples are a function of a secret key, the epoch and the step, so that everyone who has the key can work out any
part of it, with the same result on every machine: only additions, products and quotients of floats are used.

Positions stay what they are elsewhere: a step has as many as a batch has on average, and a run of them stands for the
same part of the samples that the step drew, be they more or fewer. So whoever divides a batch by positions need not
know.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dovetail.data.errors import DataError
from dovetail.data.order import Order, OrderStretch
from dovetail.privacy.keys import derived

LN2 = 0.693147180559945309417232
TERMS = 13
"""Of the series of a logarithm, whose argument is within the square root of 2 from 1: the rest is below rounding."""


@dataclass(frozen=True, kw_only=True)
class PoissonOrder(Order):
    """An epoch of as many steps as there are batches in the data, each of which draws every sample by chance."""

    batch: int
    """Samples of a step on average; also its positions."""
    key: bytes
    """Who knows it knows which samples a step has."""

    def __post_init__(self) -> None:
        """Refuse an order of nothing, and batches that nothing could be drawn from."""
        super().__post_init__()
        if self.num_samples is None or not 1 <= self.batch <= self.num_samples:
            raise DataError(
                f"batches of {self.batch} drawn from {self.num_samples} samples",
                hint="a batch is a part of the samples, of which there is a known number",
            )

    def step_samples(self, step: int) -> NDArray[np.int64]:
        """Return the samples of a step of the epoch, in rising order."""
        return _drawn(derived(self.key, "samples", self.epoch, step), self.num_samples or 0, self.batch)

    def sample_ids(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples that positions `first` up to but not including `last` stand for."""
        found = []
        while first < last:
            step, begin = divmod(first, self.batch)
            end = min(self.batch, begin + last - first)
            samples = self.step_samples(step)
            found.append(samples[len(samples) * begin // self.batch : len(samples) * end // self.batch])
            first += end - begin
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def stretches(self, first: int, last: int) -> list[OrderStretch]:
        """Return the same, by the blocks of the data that they lie in."""
        samples, size = self.sample_ids(first, last), self.block_samples
        blocks = samples // size
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        return [
            OrderStretch(
                first_sample=int(each[0]) // size * size,
                last_sample=min(int(each[0]) // size * size + size, self.num_samples or 0),
                picks=each - each[0] // size * size,
            )
            for each in np.split(samples, cuts)
            if len(each)
        ]


@lru_cache(maxsize=4)
def _drawn(key: bytes, num_samples: int, batch: int) -> NDArray[np.int64]:
    """Return each number below `num_samples` with chance batch / num_samples.

    From one drawn number to the next it is k with probability (1 - q)^(k - 1) q, so with u uniform between 0 and 1

        k = 1 + floor(log(u) / log(1 - q))
    """
    if batch == num_samples:
        drawn = np.arange(num_samples)
    else:
        per_gap = 1.0 / _log_of_rest(batch / num_samples)
        count = batch + int(6.0 * math.sqrt(batch)) + 16
        while True:
            gaps = np.floor(_log(_uniform(key, count)) * per_gap)
            places = np.cumsum(np.minimum(gaps, num_samples).astype(np.int64) + 1) - 1
            if places[-1] >= num_samples:
                break
            count *= 2  # the first ones stay what they are
        drawn = places[: np.searchsorted(places, num_samples)]
    drawn.setflags(write=False)
    return drawn


def _uniform(key: bytes, count: int) -> NDArray[np.float64]:
    """Return numbers between 0 and 1, neither of them among them: an extendable-output function of a key."""
    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * count), dtype="<u8")
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return natural logarithms, to the same bit on every machine; those of libraries differ in the last."""
    parts, exponents = np.frexp(values)
    is_low = parts < math.sqrt(0.5)
    parts, exponents = np.where(is_low, 2.0 * parts, parts), exponents - is_low
    return exponents * LN2 + _log_series((parts - 1.0) / (parts + 1.0), TERMS)


def _log_of_rest(rate: float) -> float:
    """Return log(1 - rate), accurate for small rates as well."""
    if rate > 0.25:
        return float(_log(np.array([1.0 - rate]))[0])
    return -float(_log_series(np.array([rate / (2.0 - rate)]), TERMS)[0])


def _log_series(ratio: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """Return log((1 + r) / (1 - r)) = 2 (r + r^3 / 3 + r^5 / 5 + ...), summed from its small end."""
    square = ratio * ratio
    total = np.full_like(ratio, 1.0 / (2 * terms + 1))
    for term in range(terms - 1, -1, -1):
        total = total * square + 1.0 / (2 * term + 1)
    return 2.0 * ratio * total
