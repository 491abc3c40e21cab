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
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dovetail.errors import DovetailError
from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.baselines.genetic import runnable_types
from dovetail.planner.baselines.score import Proposal, Scores
from dovetail.spec import Problem
from dovetail.spec.layer import LayerKind

Cell = Literal["lstm", "rnn"]
KINDS: tuple[str, ...] = get_args(LayerKind)
NUM_POSITIONS = 64
"""Layers beyond the last position share it."""
HIDDEN = 64
NEAR_UNIFORM = 0.1
"""What the first weights of the choice of types are shrunk by, so that every type is tried to begin with."""
UNIT_CHOICES: tuple[int, ...] = tuple(
    sorted({*range(1, 17), *(round(2 ** (quarter / 4)) for quarter in range(16, 81))})
)
"""The units a joint policy can choose: all up to 16, then steps of about a fifth up to a million."""

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


class Shape(NamedTuple):
    """What a policy was built for; it can be loaded for any problem with as many types."""

    cell: Cell
    num_types: int
    joint: bool


class PolicyNetwork(nn.Module):
    """Scores for every layer: one per type, and one per number of units where the policy is joint.

    One recurrent cell per layer reads its five features, as in HeterPS: its index and its kind, each one-hot, the size
    of its input, the size of its weights, and its communication time on each type. A saved policy is a safetensors file
    whose header says its shape.
    """

    def __init__(self, shape: Shape, *, seed: int) -> None:
        """Build it; the same seed gives the same start."""
        super().__init__()
        self.shape = shape
        num_features = NUM_POSITIONS + len(KINDS) + 2 + shape.num_types
        build = nn.LSTM if shape.cell == "lstm" else nn.RNN
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.cells = build(num_features, HIDDEN, batch_first=True)
            self.types = nn.Linear(HIDDEN, shape.num_types)
            self.units = nn.Linear(HIDDEN, len(UNIT_CHOICES)) if shape.joint else None
        # What the type of the layer before adds to each type's score. To start with, a layer likes to stay where the
        # one before it is, as stages do; the rest of the choice is near uniform.
        self.after_type = nn.Parameter(math.log(max(shape.num_types, 2)) * torch.eye(shape.num_types))
        with torch.no_grad():
            self.types.weight.mul_(NEAR_UNIFORM)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return scores of types [L, T] and of units [L, U] for the features [L, F] of a problem's layers."""
        states, _ = self.cells(features.unsqueeze(0))
        states = states.squeeze(0)
        return self.types(states), None if self.units is None else self.units(states)


def layer_features(problem: Problem) -> Tensor:
    """Return the features [L, F] of a problem's layers; sizes and times on logarithmic scales of about one."""
    rows = []
    for position, layer in enumerate(problem.layers):
        index = [0.0] * NUM_POSITIONS
        index[min(position, NUM_POSITIONS - 1)] = 1.0
        kind = [float(layer.kind == known) for known in KINDS]
        sizes = [math.log1p(layer.input_bytes) / 20, math.log1p(layer.weight_bytes) / 20]
        times = [layer.on[resource.name].comm_s if resource.name in layer.on else 0.0 for resource in problem.resources]
        rows.append(index + kind + sizes + [math.log1p(time * 1e6) / 14 for time in times])
    return torch.tensor(rows, dtype=torch.float32)


def save_policy(policy: PolicyNetwork, path: Path) -> None:
    """Write a policy to a safetensors file."""
    shape = json.dumps(policy.shape._asdict())
    try:
        save_file(policy.state_dict(), path, metadata={"dovetail_policy": shape})
    except (OSError, SafetensorError) as error:
        raise DovetailError(f"{path}: cannot be written: {error}", hint="give a path in a folder that exists") from None


def load_policy(path: Path, wanted: Shape) -> PolicyNetwork:
    """Return the policy in a file; refuse one that was built for something else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["dovetail_policy"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = Shape(**header)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        raise DovetailError(
            f"{path}: is not a policy", hint="give a file that `dovetail plan --save-policy` wrote"
        ) from None
    if found != wanted:
        raise DovetailError(
            f"{path}: is a {_in_words(found)}, and this needs a {_in_words(wanted)}",
            hint="a policy serves the method it was trained by, on problems with as many resource types",
        )
    policy = PolicyNetwork(found, seed=0)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError:
        raise DovetailError(f"{path}: holds tensors of other shapes", hint="train it again with this version") from None
    return policy


def _in_words(shape: Shape) -> str:
    """Return a policy's shape for a message."""
    return f"{'joint ' if shape.joint else ''}{shape.cell} policy for {shape.num_types} types"


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
