"""Planning again while a plan runs: whether what was measured calls for it, and where to move to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dovetail.cost import PlanEvaluation, evaluate, modelled_seconds
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.exact import Clock
from dovetail.planner.plan import cheapest_plan, fastest_plan
from dovetail.spec import Place, Plan, Problem, Stage

LEAST_GAIN = 1.05
"""A plan that is faster by less is not moved to: stage times are measured no better than that."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A stage that does not take what was predicted."""

    number: int
    predicted_s: float
    measured_s: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"stage {self.number} takes {self.measured_s / self.predicted_s:.2f} times what was predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A plan to move to; both speeds are the model's with the measured times, or both were seen."""

    plan: Plan
    before_samples_per_s: float
    after_samples_per_s: float
    is_seen: bool = False

    def saves_s(self, num_samples: int, samples_per_s: float) -> float:
        """Return the seconds that the move saves over so many samples, which would go at so many a second."""
        if samples_per_s <= 0:
            return 0.0
        return num_samples / samples_per_s * (1 - self.before_samples_per_s / self.after_samples_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A plan that ran before, and the speed that it was seen to reach."""

    plan: Plan
    samples_per_s: float

    def is_like(self, plan: Plan) -> bool:
        """Say whether a plan has the same stages on the same units, and its rows in the same place."""
        return _layout(self.plan) == _layout(plan)


def _layout(plan: Plan) -> tuple[Place | None, int, list[tuple[str, int, int]]]:
    stages = [(stage.resource, stage.last_layer, stage.units) for stage in plan.stages]
    return plan.place, (plan.servers or 0) if plan.place == "servers" else 0, stages


def differences(problem: Problem, measured: Sequence[Stage], *, above: float) -> list[Difference]:
    """Return the stages whose computing, as throughput, is off the prediction by more than the fraction `above`."""
    found = []
    for number, stage in enumerate(measured):
        predicted_s, measured_s = modelled_seconds(problem, stage), stage.seconds_per_batch
        if measured_s is None or predicted_s <= 0:
            continue
        if abs(predicted_s / measured_s - 1) > above:
            found.append(Difference(number=number, predicted_s=predicted_s, measured_s=measured_s))
    return found


def better_plan(problem: Problem, stages: Sequence[Stage], *, clock: Clock, time_limit_s: float = 5.0) -> Move | None:
    """Return the fastest plan that costs no more an hour than `stages`, or None where that is hardly faster.

    Where even that misses the problem's floor, the cheapest plan that keeps it, where there is one. Cuts inside one
    type are allowed where `stages` have some. A move changes stages, not what runs beside them.
    """
    asked, problem = problem, msgspec.structs.replace(problem, beside=None)
    now = evaluate(problem, stages, split_stages=True)
    split = any(one.resource == other.resource for one, other in itertools.pairwise(stages))
    cap = now.cost_per_hour * (1 + ROUNDING)
    demands = Demands(max_cost_per_hour=cap, split_stages=split, time_limit_s=time_limit_s)
    try:
        plan = fastest_plan(problem.with_floor(0.0), demands, clock=clock)
        if plan.samples_per_s < problem.min_samples_per_s:
            plan = _at_the_floor(problem, plan, split=split, clock=clock, time_limit_s=time_limit_s)
    except PlanError:  # out of time, or what runs is over a limit of the problem's
        return None
    if plan.samples_per_s < LEAST_GAIN * now.samples_per_s or _is_dearer(plan, now):
        return None
    plan = msgspec.structs.replace(plan, problem=asked.digest())
    return Move(plan=plan, before_samples_per_s=now.samples_per_s, after_samples_per_s=plan.samples_per_s)


def _is_dearer(plan: Plan, now: PlanEvaluation) -> bool:
    """Say whether bytes between sites make a plan cost more in all than what runs, though its units do not."""
    return (plan.egress_cost or 0.0) > now.egress_cost and plan.cost > now.cost * (1 + ROUNDING)


def way_back(samples_per_s: float, earlier: Sequence[Ran]) -> Move | None:
    """Return the fastest plan that ran before, where it was clearly faster than what runs now: the model was wrong."""
    best = max(earlier, key=lambda ran: ran.samples_per_s, default=None)
    if best is None or best.samples_per_s < LEAST_GAIN * samples_per_s:
        return None
    return Move(
        plan=best.plan, before_samples_per_s=samples_per_s, after_samples_per_s=best.samples_per_s, is_seen=True
    )


def _at_the_floor(problem: Problem, fastest: Plan, *, split: bool, clock: Clock, time_limit_s: float) -> Plan:
    """Return the cheapest plan that keeps the floor, or the fastest for the money where none does."""
    try:
        return cheapest_plan(problem, Demands(split_stages=split, time_limit_s=time_limit_s), clock=clock)
    except NoPlanError:
        return fastest
