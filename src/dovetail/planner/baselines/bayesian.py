"""Bayesian optimisation, by Optuna's tree-structured Parzen estimator over one categorical choice a layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.errors import MissingExtraError
from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.baselines.genetic import runnable_types
from dovetail.planner.baselines.score import Proposal, Scores

TRIALS = 400


class Bayesian:
    """Proposes one plan at a time, each drawn where good plans are likely by what is known so far."""

    def __init__(self, arrays: ProblemArrays, *, seed: int, trials: int | None = None) -> None:
        """Start a study; the estimator looks at all layers together."""
        try:
            import optuna  # noqa: PLC0415
        except ImportError:
            raise MissingExtraError("Optuna, which `bayesian` stands on,", extra="bayesian") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)
        self._choices: dict[str, Any] = {
            f"layer{position}": optuna.distributions.CategoricalDistribution(types.tolist())
            for position, types in enumerate(runnable_types(arrays))
        }
        self._trial: Any = None
        self.trials_left = TRIALS if trials is None else trials

    def propose(self) -> Proposal | None:
        """Return the next plan to try."""
        if self.trials_left == 0:
            return None
        self.trials_left -= 1
        self._trial = self._study.ask(self._choices)
        chosen = [self._trial.params[name] for name in self._choices]
        return Proposal(np.array([chosen], dtype=np.int64))

    def finish(self) -> None:
        """Add nothing: the best was proposed already."""

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Tell the study what the plan costs, on a logarithmic scale."""
        reward = float(scores.reward()[0])
        self._study.tell(self._trial, -reward if np.isfinite(scores.rates[0]) else 1e3 + float(scores.shortfalls[0]))
