"""Rules of thumb: everything on one kind of machine, or the data-heavy first layer on the CPU and the rest on a GPU."""

from __future__ import annotations

import numpy as np

from dovetail.errors import PlanError
from dovetail.planner.baselines.score import Proposal, Scores
from dovetail.spec import Problem
from dovetail.spec.resource import Kind


class FixedRules:
    """Proposes a handful of fixed plans, once."""

    def __init__(self, assignments: list[list[int]]) -> None:
        """Take the plans as types per layer."""
        self._proposal: Proposal | None = Proposal(np.array(assignments, dtype=np.int64))

    def propose(self) -> Proposal | None:
        """Return the plans the first time, then nothing."""
        proposal, self._proposal = self._proposal, None
        return proposal

    def learn(self, proposal: Proposal, scores: Scores) -> None:
        """Learn nothing: a rule of thumb is what it is."""

    def finish(self) -> None:
        """Add nothing."""


def only(problem: Problem, kind: Kind) -> FixedRules:
    """Propose all layers on one type of a kind, for each such type that can run them all."""
    able = [t for t in _of_kind(problem, kind) if _can_run(problem, t, first_layer=0)]
    if not able:
        raise PlanError(
            f"no type of kind `{kind}` can run every layer",
            hint="give each layer its times on one such type, or use --method exact",
        )
    return FixedRules([[t] * len(problem.layers) for t in able])


def first_on_cpu(problem: Problem) -> FixedRules:
    """Propose the first layer on a cpu and the rest on the best single gpu, for each pair that can run them."""
    cpus = [t for t in _of_kind(problem, "cpu") if problem.resources[t].name in problem.layers[0].on]
    gpus = [t for t in _of_kind(problem, "gpu") if _can_run(problem, t, first_layer=1)]
    if not cpus or not gpus:
        raise PlanError(
            "the heuristic needs a cpu that can run the first layer and a gpu that can run all others",
            hint='say which types are which with kind = "cpu" and kind = "gpu", or use --method exact',
        )
    return FixedRules([[cpu] + [gpu] * (len(problem.layers) - 1) for cpu in cpus for gpu in gpus])


def _of_kind(problem: Problem, kind: Kind) -> list[int]:
    return [t for t, resource in enumerate(problem.resources) if problem.kind_of(resource) == kind]


def _can_run(problem: Problem, t: int, *, first_layer: int) -> bool:
    """Say whether a type can run all layers from `first_layer` on."""
    return all(problem.resources[t].name in layer.on for layer in problem.layers[first_layer:])
