"""`clicks`: an endless, seeded click log with real skew and a known truth."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data.batch import Batch
from dovetail.data.clicks.best import best_auc
from dovetail.data.clicks.kernels import MOST_VALUES, draw_dense, draw_ids, draw_offsets, draw_units
from dovetail.data.clicks.popularity import MEAN_TABLE_ROWS, rank_table
from dovetail.data.clicks.truth import Weights, known_family, raw_score
from dovetail.data.counter import stream_of
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema, Slot

NUM_CALIBRATION = 65_536


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """Samples of numbers, slots and a click, made on demand; see `dovetail.data.clicks.truth` for who clicks."""

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
        score = raw_score(self.truth, ids, offsets, dense, self._weights())
        return np.asarray(1.0 / (1.0 + np.exp(-(scale * score + shift))))

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
        score = raw_score(self.truth, ids, offsets, dense, self._weights())
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
