"""`clicks`: an endless, seeded click log with real skew and a known truth, and so a known best result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.clicks.kernels import MOST_VALUES, draw_dense, draw_ids, draw_offsets, draw_units
from dovetail.data.clicks.popularity import MEAN_TABLE_ROWS, rank_table
from dovetail.data.counter import stream_of, substream
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema, Slot
from dovetail.errors import did_you_mean

SMALL_TABLE_ROWS = 100
SMALL_TABLE_SLOTS = 5
_UNIT_VARIANCE = 2 * 3.0**0.5 / 65536.0

NUM_CALIBRATION = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The parameters of the truth beside the vectors of the ids."""

    stream: np.uint64
    slots: NDArray[np.float64]
    """[s]: how much each slot counts."""
    dense: NDArray[np.float64]
    """[d, 4]."""


@njit(cache=True, nogil=True)
def slot_sums(
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    num_slots: int,
    stream: np.uint64,
    weights: NDArray[np.float64],
    modulus: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # pragma: no cover
    """Return, for each sample, the weighted sum of its ids' vectors, and the sum of its slots' squared lengths.

    With v the vector of a slot, the products of every two slots are (|sum v|^2 - sum |v|^2) / 2. Only the first
    `weights.size` of the `num_slots` slots count; a `modulus` above 0 is applied to the ids first.
    """
    num_samples = (offsets.size - 1) // num_slots
    sums = np.zeros((num_samples, 4))
    squares = np.zeros(num_samples)
    low = np.uint64(0xFFFF)
    for i in range(num_samples):
        for slot in range(weights.size):
            a = b = c = d = 0.0
            bag = i * num_slots + slot
            for position in range(offsets[bag], offsets[bag + 1]):
                key = ids[position] % modulus if modulus > 0 else ids[position]
                word = substream(stream, np.uint64(key))
                a += float(word & low)
                b += float((word >> np.uint64(16)) & low)
                c += float((word >> np.uint64(32)) & low)
                d += float(word >> np.uint64(48))
            middle = 32767.5 * (offsets[bag + 1] - offsets[bag])
            scale = weights[slot] * _UNIT_VARIANCE
            a, b, c, d = (a - middle) * scale, (b - middle) * scale, (c - middle) * scale, (d - middle) * scale
            sums[i, 0] += a
            sums[i, 1] += b
            sums[i, 2] += c
            sums[i, 3] += d
            squares[i] += a * a + b * b + c * c + d * d
    return sums, squares


Family = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], Weights], NDArray[np.float64]]


def raw_score(
    family: str,
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    dense: NDArray[np.float32],
    weights: Weights,
) -> NDArray[np.float64]:
    """Return the family's score of each sample, before it is scaled and shifted.

    Every id has a vector of four numbers, each uniform with mean 0 and variance 1, drawn from (seed, id). With h the
    sum of the vectors of a sample's ids, each weighted by its slot, plus a linear map of its numbers, the families are

        logistic     h[0]
        deep         relu(h[0]) + relu(h[1]) - relu(h[2]) - relu(h[3])         an embedding and fully connected layers
        two-tables   deep + a second deep term over the first 5 slots, their ids taken modulo 100
        dot          h[0] + the products of the vectors of every two slots     what DLRM multiplies out

    then scaled to the wanted spread and shifted to the wanted click rate.
    """
    return FAMILIES[known_family(family)](ids, offsets, dense, weights)


def known_family(family: str) -> str:
    """Return `family` if there is such a truth."""
    if family not in FAMILIES:
        raise DataError(f"there is no truth `{family}`", hint=did_you_mean(family, FAMILIES))
    return family


def _hidden(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return h of each sample, and the sum of its slots' squared lengths."""
    sums, squares = slot_sums(ids, offsets, weights.slots.size, weights.stream, weights.slots, 0)
    return sums + dense @ weights.dense, squares


def _bent(hidden: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return two ramps less two ramps."""
    ramps = np.maximum(hidden, 0.0)
    return np.asarray(ramps[:, 0] + ramps[:, 1] - ramps[:, 2] - ramps[:, 3])


def _logistic(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    return _hidden(ids, offsets, dense, weights)[0][:, 0]


def _deep(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return a network of one hidden layer over embeddings."""
    return _bent(_hidden(ids, offsets, dense, weights)[0])


def _two_tables(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return the deep score, and another over a few slots with few rows."""
    num_slots = weights.slots.size
    few = weights.slots[:SMALL_TABLE_SLOTS]
    stream = np.uint64(weights.stream ^ np.uint64(0xFFFF))
    small, _ = slot_sums(ids, offsets, num_slots, stream, few, SMALL_TABLE_ROWS)
    share = np.sqrt(np.sum(weights.slots**2) / np.sum(few**2))
    return np.asarray(_deep(ids, offsets, dense, weights) + 0.5 * share * _bent(small))


def _dot(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], dense: NDArray[np.float32], weights: Weights
) -> NDArray[np.float64]:
    """Return a weighted sum of features and of the products of every two slots (the numbers count as one more slot)."""
    sums, squares = slot_sums(ids, offsets, weights.slots.size, weights.stream, weights.slots, 0)
    bottom = dense @ weights.dense
    total = sums + bottom
    squares = squares + np.sum(bottom**2, axis=1)
    return np.asarray(total[:, 0] + 0.5 * (np.sum(total**2, axis=1) - squares))


FAMILIES: dict[str, Family] = {"logistic": _logistic, "deep": _deep, "two-tables": _two_tables, "dot": _dot}


def best_auc(probabilities: NDArray[np.float64]) -> float:
    """Return the expected AUC of a model that knows every sample's click probability.

    A pair (i, j) counts when i is clicked and j is not, with probability p_i (1 - p_j), and is then in the right order
    if p_i > p_j; a tie counts half. No order of the samples does better, since it puts the likelier of each pair first:

        AUC = sum_ij p_i (1 - p_j) ([p_i > p_j] + [p_i = p_j] / 2) / sum_ij p_i (1 - p_j)
    """
    p = np.sort(np.asarray(probabilities, dtype=np.float64))
    quiet = 1.0 - p
    below = np.concatenate([[0.0], np.cumsum(quiet)])
    first = np.searchsorted(p, p, side="left")
    last = np.searchsorted(p, p, side="right")
    in_order = np.sum(p * (below[first] + below[last]) / 2)
    all_pairs = np.sum(p) * np.sum(quiet)
    alone = np.sum(p * quiet)  # a sample is no pair with itself
    return float((in_order - alone / 2) / (all_pairs - alone))


def best_recall(probabilities: NDArray[np.float64], k: int) -> float:
    """Return the expected recall@k of a model that knows the chance of every item (columns) for every user (rows)."""
    if k >= probabilities.shape[1]:
        return 1.0
    top = np.partition(probabilities, -k, axis=1)[:, -k:]
    return float(np.mean(np.sum(top, axis=1)))


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """Samples of numbers, slots and a click, made on demand; see `dovetail.data.clicks.source` for who clicks."""

    seed: int = 0
    truth: str = "deep"
    num_samples: int | None = None
    num_dense: int = 13
    num_slots: int = 26
    num_multi_valued: int = 2
    """The last so many slots have several ids a sample."""
    mean_values: float = 4.0
    """How many on average."""
    rows_per_slot: int = MEAN_TABLE_ROWS
    click_rate: float = 0.25
    spread: float = 1.5
    """The standard deviation of the true log-odds: the larger, the more can be known."""
    schema: Schema = field(init=False)
    _calibration: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the wishes, and scale the truth to the wanted spread and click rate."""
        known_family(self.truth)
        self._check()
        object.__setattr__(self, "schema", self._schema())
        object.__setattr__(self, "_calibration", self._calibrate())

    def read(self, first: int, last: int) -> Batch:
        """Return samples `first` up to but not including `last`."""
        offsets, ids, dense = self._features("samples", first, last)
        chance = self._probabilities(offsets, ids, dense)
        clicked = draw_units(stream_of(self.seed, "clicks"), first, chance.size) < chance
        return Batch(
            sample_ids=torch.arange(first, first + chance.size),
            dense=torch.from_numpy(dense),
            ids=torch.from_numpy(ids),
            offsets=torch.from_numpy(offsets),
            labels=torch.from_numpy(clicked.astype(np.float32)),
        )

    def probabilities(self, batch: Batch) -> NDArray[np.float64]:
        """Return the true click probability of samples with such features."""
        return self._probabilities(batch.offsets.numpy(), batch.ids.numpy(), batch.dense.numpy())

    def best_auc(self, num_samples: int = 200_000, *, first: int = 0) -> float:
        """Return the AUC that no model can beat, in expectation over the clicks of `num_samples` samples."""
        end = first + num_samples if self.num_samples is None else min(first + num_samples, self.num_samples)
        blocks = range(first, end, NUM_CALIBRATION)
        chances = [
            self._probabilities(*self._features("samples", block, min(block + NUM_CALIBRATION, end)))
            for block in blocks
        ]
        return best_auc(np.concatenate(chances))

    def _features(
        self, purpose: str, first: int, last: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return offsets, ids and numbers of a range of samples."""
        if first < 0 or last < first:
            raise DataError(f"samples {first} to {last} were asked for", hint="ask for 0 <= first <= last")
        if self.num_samples is not None:
            first, last = min(first, self.num_samples), min(last, self.num_samples)
        stream = stream_of(self.seed, purpose)
        offsets = draw_offsets(stream, first, last - first, self._mean_values())
        first_keys = np.arange(self.num_slots, dtype=np.int64) * self.rows_per_slot
        table_of = np.zeros(self.num_slots, dtype=np.int64)
        ids = draw_ids(stream, first, offsets, first_keys, table_of, rank_table(self.rows_per_slot)[None, :])
        return offsets, ids, draw_dense(stream, first, last - first, self.num_dense)

    def _probabilities(
        self, offsets: NDArray[np.int64], ids: NDArray[np.int64], dense: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return the sigmoid of the scaled and shifted score."""
        scale, shift = self._calibration
        score = raw_score(self.truth, ids, offsets, dense, self._weights)
        return np.asarray(1.0 / (1.0 + np.exp(-(scale * score + shift))))

    @cached_property
    def _weights(self) -> Weights:
        """Return the truth's own parameters: slots count between once and three times as much as each other."""
        draw = np.random.Generator(np.random.Philox(int(stream_of(self.seed, "truth"))))
        slots = draw.uniform(0.5, 1.5, self.num_slots) / np.sqrt(self._mean_values())
        total = np.sqrt(max(1, self.num_slots + self.num_dense))
        dense = draw.uniform(-1.0, 1.0, (self.num_dense, 4)) * np.sqrt(3.0)
        return Weights(stream=stream_of(self.seed, "vectors"), slots=slots / total, dense=dense / total)

    def _calibrate(self) -> tuple[float, float]:
        """Return the scale and shift that give the wanted spread and click rate over samples of their own."""
        offsets, ids, dense = self._features(
            "calibration", 0, min(NUM_CALIBRATION, self.num_samples or NUM_CALIBRATION)
        )
        score = raw_score(self.truth, ids, offsets, dense, self._weights)
        scale = self.spread / float(np.std(score))
        low, high = -100.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            rate = float(np.mean(1.0 / (1.0 + np.exp(-(scale * (score - np.mean(score)) + middle)))))
            low, high = (middle, high) if rate < self.click_rate else (low, middle)
        return scale, low - scale * float(np.mean(score))

    def _mean_values(self) -> NDArray[np.float64]:
        """Return the mean number of ids of each slot."""
        means = np.ones(self.num_slots)
        means[self.num_slots - self.num_multi_valued :] = self.mean_values
        return means

    def _schema(self) -> Schema:
        means = self._mean_values()
        return Schema(
            dense=tuple(f"number{i + 1}" for i in range(self.num_dense)),
            slots=tuple(
                Slot(
                    name=f"slot{i + 1}",
                    multi_valued=bool(means[i] > 1),
                    num_keys=self.rows_per_slot,
                    first_key=i * self.rows_per_slot,
                )
                for i in range(self.num_slots)
            ),
        )

    def _check(self) -> None:
        rules = {
            "num_slots": (self.num_slots >= 1, "a whole number of at least 1"),
            "num_dense": (self.num_dense >= 0, "a whole number of at least 0"),
            "num_multi_valued": (0 <= self.num_multi_valued <= self.num_slots, "between 0 and num_slots"),
            "mean_values": (1.0 <= self.mean_values <= MOST_VALUES / 4, f"between 1 and {MOST_VALUES // 4}"),
            "rows_per_slot": (2 <= self.rows_per_slot <= 2**40, "between 2 and 2**40"),
            "click_rate": (0.0 < self.click_rate < 1.0, "between 0 and 1"),
            "spread": (self.spread > 0.0, "a number above 0"),
            "num_samples": (self.num_samples is None or self.num_samples >= 1, "at least 1, or absent for no end"),
        }
        for name, (holds, expected) in rules.items():
            if not holds:
                raise DataError(f"clicks: {name} is {getattr(self, name)}", hint=f"`{name}` is {expected}")
