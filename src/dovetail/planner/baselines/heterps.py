"""The RL planner of HeterPS: REINFORCE on a recurrent policy, with a moving-average baseline.

Every round draws plans from the policy, prices them, and moves the policy towards the cheaper ones:

    b    <- (1 - g) b + g mean(R)                                  the baseline follows the mean reward
    loss  = - mean over plans of max(R - b, 0) log p(plan)  -  e entropy  -  w log p(best plan so far)

with R = - log cost. Three things are ours: plans dearer than the baseline teach nothing (there are so many ways to be
dear that pushing away from each drowns the way to be cheap; on twelve problems of 16 layers x 16 types the median fell
from 4.5% above the optimum to 2.8% with most of that push gone, and to 0.2% with none and twice the plans a round, two
changes not tried apart); the entropy weight `e` falls to zero over the rounds, so that the policy first looks
around and then decides; and the last term keeps what was found. At use each layer takes its most likely type.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.baselines.genetic import runnable_types
from dovetail.planner.baselines.heterps_network import (
    UNIT_CHOICES,
    Cell,
    PolicyNetwork,
    Shape,
    layer_features,
    load_policy,
    save_policy,
)
from dovetail.planner.baselines.score import Proposal, Scores
from dovetail.spec import Problem

ROUNDS = 400
PLANS_PER_ROUND = 512
LEARNING_RATE = 0.01
BASELINE_GAIN = 0.1
ENTROPY_WEIGHT = 0.1
BEST_WEIGHT = 0.05
LEAST_SPREAD = 0.05
"""Rewards are scaled by their spread, but not by less: where all plans are one, there is nothing to learn."""
MEASURED_ROUNDS = 20
MEASURED_PLANS = 8
"""Runs cost far more than a look at the model: 20 rounds of 8 plans, many of which were run before."""
MEASURED_SURENESS = 2.0
"""A policy that the model has made sure of itself is softened for the measured rounds, until no choice of type is ahead
of the next by more than this (in logarithms: about 7 to 1), and hardens again over them."""
SETTLING_STEPS = 500
"""At most so many steps at the end, until the most likely plan is the best plan met."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: a policy this small is slower on more, and far slower beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Choices(NamedTuple):
    """Plans as indices into what a policy can choose."""

    types: Tensor  # [N, L]
    units: Tensor | None  # [N, L]


class Reinforce:
    """Proposes plans drawn from a policy, and trains it on what they cost."""

    def __init__(
        self,
        problem: Problem,
        arrays: ProblemArrays,
        policy: PolicyNetwork,
        *,
        seed: int,
        rounds: int = ROUNDS,
        plans_per_round: int = PLANS_PER_ROUND,
    ) -> None:
        """Set up; a policy that was trained before is a warm start, and `rounds` of 0 only asks it."""
        self.policy = policy
        self.features = layer_features(problem)
        self.mask = torch.full((arrays.num_layers, arrays.num_types), -math.inf)
        for position, types in enumerate(runnable_types(arrays)):
            self.mask[position, torch.from_numpy(types)] = 0.0
        self.random = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
        self.rounds, self.plans_per_round = rounds, plans_per_round
        self.round = 0
        self.baseline: float | None = None
        self.best_rate = math.inf
        self.best: Choices | None = None
        self.temperature, self.cooling = 1.0, 1.0

    def propose(self) -> Proposal | None:
        """Return plans drawn from the policy, until the last round."""
        if self.round == self.rounds:
            return None
        with one_thread():
            return self._choose(self.plans_per_round, at_random=True)

    def finish(self) -> Proposal:
        """Return the policy's most likely plan, which is the best plan met once the policy has settled on it."""
        with one_thread():
            self._settle()
            return self._choose(1, at_random=False)

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Take one step towards the plans that cost less than the baseline."""
        with one_thread():
            self._learn(proposal, scores)

    def _learn(self, proposal: Proposal, scores: Scores) -> None:
        """Take one step of REINFORCE."""
        self.round += 1
        rewards = torch.from_numpy(scores.reward()).float()
        mean = float(rewards.mean())
        self.baseline = mean if self.baseline is None else (1 - BASELINE_GAIN) * self.baseline + BASELINE_GAIN * mean
        spread = rewards.std().clamp(min=LEAST_SPREAD)
        advantages = ((rewards - self.baseline) / spread).clamp(min=0.0)
        drawn = self._as_choices(proposal)
        self._keep_best(drawn, scores)
        likelihood, entropy = self._log_likelihood(drawn)
        loss = -(advantages * likelihood).mean() - ENTROPY_WEIGHT * self._left() * entropy
        if self.best is not None:
            loss = loss - BEST_WEIGHT * self._log_likelihood(self.best)[0].mean()
        self._step(loss)
        self.temperature = max(1.0, self.temperature * self.cooling)

    def begin_measured(self) -> None:
        """Begin the second phase: few plans a round, each run for real, and what the model said of cost forgotten."""
        self.round, self.rounds, self.plans_per_round = 0, MEASURED_ROUNDS, MEASURED_PLANS
        self.baseline, self.best, self.best_rate = None, None, math.inf
        with torch.no_grad(), one_thread():
            best_two = (self.policy(self.features)[0] + self.mask).topk(min(2, self.mask.shape[1]), dim=1).values
        sureness = float((best_two[:, 0] - best_two[:, -1]).nan_to_num(posinf=0.0).max())
        self.temperature = max(1.0, sureness / MEASURED_SURENESS)
        self.cooling = self.temperature ** (-1 / MEASURED_ROUNDS)

    def save(self, path: Path) -> None:
        """Write the policy to a file."""
        save_policy(self.policy, path)

    def _left(self) -> float:
        """Return the fraction of the rounds still to come."""
        return 1 - self.round / self.rounds

    def _choose(self, num_plans: int, *, at_random: bool) -> Proposal:
        """Return plans made layer by layer: drawn by the policy's probabilities, or the likeliest choice each time."""
        with torch.no_grad():
            type_scores, unit_scores = self._scores()
            scores = (type_scores[0] + self.mask[0]).expand(num_plans, -1)
            chosen: list[Tensor] = []
            for position in range(len(self.features)):
                if position > 0:
                    scores = (
                        type_scores[position]
                        + self.mask[position]
                        + self.policy.after_type[chosen[-1]] / self.temperature
                    )
                chosen.append(self._pick(scores, at_random=at_random))
            types = torch.stack(chosen, dim=1).numpy()
            if unit_scores is None:
                return Proposal(types)
            units = [self._pick(scores.expand(num_plans, -1), at_random=at_random) for scores in unit_scores]
        return Proposal(types, np.array(UNIT_CHOICES)[torch.stack(units, dim=1).numpy()])

    def _scores(self) -> tuple[Tensor, Tensor | None]:
        """Return the policy's scores of types and units, softened by the temperature."""
        types, units = self.policy(self.features)
        return types / self.temperature, None if units is None else units / self.temperature

    def _pick(self, scores: Tensor, *, at_random: bool) -> Tensor:
        """Return one choice per row of scores."""
        if not at_random:
            return scores.argmax(dim=1)
        return torch.multinomial(torch.softmax(scores, dim=1), 1, generator=self.random).squeeze(1)

    def _as_choices(self, proposal: Proposal) -> Choices:
        """Return a proposal as indices into what the policy can choose."""
        units = proposal.units
        return Choices(
            torch.from_numpy(proposal.assignments),
            None if units is None else torch.from_numpy(np.searchsorted(np.array(UNIT_CHOICES), units)),
        )

    def _log_likelihood(self, choices: Choices) -> tuple[Tensor, Tensor]:
        """Return log p [N] of plans, and the mean entropy of the choices that led to them.

        Units count where a stage starts, for only there they are used.
        """
        type_scores, unit_scores = self._scores()
        types = choices.types
        scores = (type_scores + self.mask).expand(len(types), -1, -1)
        before = torch.nn.functional.pad(self.policy.after_type[types[:, :-1]], (0, 0, 1, 0))
        logs = torch.log_softmax(scores + before / self.temperature, dim=2)
        likelihood = logs.gather(2, types.unsqueeze(2)).squeeze(2).sum(dim=1)
        entropy = _entropy(logs)
        if unit_scores is not None and choices.units is not None:
            unit_logs = torch.log_softmax(unit_scores, dim=1)
            starts = torch.ones_like(types, dtype=torch.bool)
            starts[:, 1:] = types[:, 1:] != types[:, :-1]
            layers = torch.arange(types.shape[1])
            likelihood = likelihood + (unit_logs[layers, choices.units] * starts).sum(dim=1)
            entropy = entropy + _entropy(unit_logs.unsqueeze(0))
        return likelihood, entropy

    def _keep_best(self, drawn: Choices, scores: Scores) -> None:
        """Remember the cheapest plan met."""
        cheapest = int(np.argmin(scores.rates))
        if scores.rates[cheapest] < self.best_rate:
            self.best_rate = float(scores.rates[cheapest])
            units = None if drawn.units is None else drawn.units[cheapest : cheapest + 1].clone()
            self.best = Choices(drawn.types[cheapest : cheapest + 1].clone(), units)

    def _settle(self) -> None:
        """Make the best plan met the most likely one, so that the policy alone gives it again."""
        if self.best is None:
            return
        for _ in range(SETTLING_STEPS):
            likely = self._as_choices(self._choose(1, at_random=False))
            same_units = likely.units is None or self.best.units is None or likely.units.equal(self.best.units)
            if likely.types.equal(self.best.types) and same_units:
                return
            self._step(-self._log_likelihood(self.best)[0].mean())

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def _entropy(logs: Tensor) -> Tensor:
    """Return the mean over plans [N, L, .] of the entropy of their choices, added up over layers."""
    return -(logs.exp() * logs.clamp(min=-1e9)).sum(dim=(1, 2)).mean()


def reinforce(
    method: str, problem: Problem, arrays: ProblemArrays, *, seed: int, rounds: int | None, load: Path | None
) -> Reinforce:
    """Return the proposer of `rl` (LSTM), `rl-rnn` (Elman) or `rl-joint` (types and units), fresh or from a file."""
    cell: Cell = "rnn" if method == "rl-rnn" else "lstm"
    shape = Shape(cell, arrays.num_types, method == "rl-joint")
    policy = PolicyNetwork(shape, seed=seed) if load is None else load_policy(load, shape)
    return Reinforce(problem, arrays, policy, seed=seed, rounds=ROUNDS if rounds is None else rounds)
