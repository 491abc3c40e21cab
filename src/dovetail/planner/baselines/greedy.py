"""Greedy: layer by layer, the type that makes the plan so far cheapest."""

from __future__ import annotations

import math

import numpy as np

from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.baselines.score import CLOSE_ENOUGH, Proposal, Scores
from dovetail.planner.provision import provision, stages_of


class Greedy:
    """Proposes the one plan that greed leads to."""

    def __init__(self, arrays: ProblemArrays, *, min_samples_per_s: float) -> None:
        self.arrays = arrays
        self.min_samples_per_s = min_samples_per_s
        self._done = False

    def propose(self) -> Proposal | None:
        """Return the greedy plan the first time, then nothing."""
        if self._done:
            return None
        self._done = True
        chosen = np.zeros(self.arrays.num_layers, dtype=np.int64)
        for position in range(self.arrays.num_layers):
            able = [t for t in range(self.arrays.num_types) if self.arrays.end_of_run[t, position] > position]
            chosen[position] = min(able, key=lambda t: self._rate(chosen[:position], t))
        return Proposal(chosen[np.newaxis])

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Learn nothing: greed never looks back."""

    def finish(self) -> None:
        """Add nothing."""

    def _rate(self, before: np.ndarray[tuple[int], np.dtype[np.int64]], t: int) -> float:
        """Return what the layers so far cost with the next one on type t; cheap per second where none is legal."""
        assignment = np.append(before, t)
        types, lasts, units = (np.zeros_like(assignment) for _ in range(3))
        count = stages_of(assignment, types, lasts)
        rate = provision(self.arrays, types, lasts, count, self.min_samples_per_s, CLOSE_ENOUGH, units)
        # No legal plan so far: rank such types behind the legal ones, by price.
        return float(rate) if math.isfinite(rate) else 1e300 * float(self.arrays.price_per_hour[t])
