"""How much memory an embedding's rows are given: the best budgets of all, and the proof that none are better.

A knob that sets budgets is between two bounds. A problem that takes what the upper one saves and only what the lower
one needs is easier than any setting between: its plan's cost is a bound for all of them. The plan itself, its units'
memory filled with rows, is a plan to be had. Where the two differ, the bounds are parted where the memory was full:
below, nothing is better than the plan found; above, this plan does not fit. The most promising bounds come first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from dovetail.cost.row_budget import with_budget
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.budget_fill import LEAST_BYTES, filled, priced, room_for_rows, with_budgets
from dovetail.planner.budget_knobs import Knob, Place
from dovetail.planner.demands import Demands
from dovetail.planner.exact import MARGIN, OPTIMAL_WITHIN, Clock
from dovetail.spec import Layer, LayerTime, Plan, Problem, RowCache, Stage

PlanOne = Callable[[Problem, Demands], Plan]
BEYOND_FULL = 1e-11
"""Of a unit's memory: so much more than full counts as not fitting, whatever rounding does."""
SAME_SPEED = 1e-9


@dataclass(frozen=True, slots=True)
class Between:
    """Settings from `low` to `high`."""

    low: float
    high: float


Choices = Mapping[int, Between | None]
"""By knob: settings, or None for keeping all rows. A knob that is not named may still have either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The best plan, where one was met, and the plans that bound all others."""

    best: Plan | None
    bounds: tuple[Plan, ...]


class BudgetSearch:
    """One search; `fastest` asks for speed first and money second, else money counts alone."""

    def __init__(
        self, problem: Problem, demands: Demands, plan_one: PlanOne, *, fastest: bool, clock: Clock, deadline_s: float
    ) -> None:
        self._problem, self._demands, self._plan_one = problem, demands, plan_one
        self._fastest, self._clock, self._deadline_s = fastest, clock, deadline_s
        self._best: Plan | None = None

    def run(self, knobs: Sequence[Knob], *, best: Plan | None = None, most_questions: int | None = None) -> Searched:
        """Turn the knobs until nothing better than `best` can be left; raise NoPlanError where nothing is legal."""
        self._best, count = best, itertools.count()
        root: Choices = {
            number: None
            for number, knob in enumerate(knobs)
            if self._problem.resource(knob.resource).memory_bytes is None
        }
        queue: list[tuple[tuple[float, ...], int, Choices, Plan]] = [((), 0, root, self._easiest(knobs, root))]
        settled: list[Plan] = []
        asked = 1
        while queue and self._may_go_on(asked, most_questions):
            _, _, choices, plan = heapq.heappop(queue)
            if self._is_beaten(plan):
                settled.append(plan)
                continue
            had = self._had(plan, knobs, choices)
            if had is not None and (self._best is None or self._rank(had) < self._rank(self._best)):
                self._best = had
            parts = self._parted(plan, knobs, choices, had)
            if not parts:
                settled.append(plan)
            for part in parts:
                asked += 1
                try:
                    easier = self._easiest(knobs, part)
                except NoPlanError:
                    continue
                except PlanError:
                    if self._best is None:
                        raise
                    easier = plan  # out of time: what was known before holds
                heapq.heappush(queue, (self._promise(easier), next(count), part, easier))
        return Searched(best=self._best, bounds=(*settled, *(plan for *_, plan in queue)))

    def _may_go_on(self, asked: int, most: int | None) -> bool:
        if self._best is None:
            return True
        return self._clock() < self._deadline_s and (most is None or asked < most)

    def _easiest(self, knobs: Sequence[Knob], choices: Choices) -> Plan:
        """Return the plan of a problem that is no harder than any settings within the choices."""
        layers = list(self._problem.layers)
        for number, knob in enumerate(knobs):
            choice = choices.get(number)
            low = {} if choice is None else knob.budgets(choice.low)
            high = {} if choice is None else knob.budgets(choice.high)
            for place, cache in knob.caches.items():
                position, name = place
                if number not in choices:
                    layers[position] = _on(layers[position], name, cache=None, rows_bytes=LEAST_BYTES)
                elif choice is None:
                    layers[position] = _on(layers[position], name, cache=None)
                else:
                    whole = _on(layers[position], name, cache=cache)
                    layers[position] = _on(with_budget(whole, name, high[place]), name, rows_bytes=low[place])
        eased = msgspec.structs.replace(self._problem, layers=tuple(layers))
        left_s = max(0.0, self._deadline_s - self._clock())
        return self._plan_one(eased, replace(self._demands, time_limit_s=left_s))

    def _had(self, plan: Plan, knobs: Sequence[Knob], choices: Choices) -> Plan | None:
        """Return a plan of the same stages with as many rows as fit, where the choices say some; None if illegal."""
        stages = []
        for stage in plan.stages:
            least: dict[str, float] = {}
            for number, knob in enumerate(knobs):
                choice = choices.get(number)
                if choice is not None:
                    low = knob.budgets(choice.low)
                    least |= {self._problem.layers[at].name: low[at, name] for at, name in _in(stage, knob)}
            room = room_for_rows(self._problem, stage, list(least))
            stages.append(with_budgets(stage, filled(self._problem, stage, least, room) if least else None))
        return priced(self._problem, plan, stages, self._demands)

    def _parted(self, plan: Plan, knobs: Sequence[Knob], choices: Choices, had: Plan | None) -> list[Choices]:
        """Return choices that are those given in two parts; none where the plan to be had is as good as the bound."""
        in_use = [
            (number, knob, stage, places)
            for stage in plan.stages
            for number, knob in enumerate(knobs)
            if (places := _in(stage, knob))
        ]
        for number, knob, _, _ in in_use:
            if number not in choices:
                return [{**choices, number: None}, {**choices, number: Between(0.0, knob.most)}]
        if had is not None and not self._is_better(plan, had):
            return []
        widest, worth_s, end = None, 0.0, 0.0
        for number, knob, stage, places in in_use:
            if (choice := choices[number]) is None:
                continue
            full = self._full(stage, knob, places, knobs, choices)
            above, there = knob.budgets(choice.high), knob.budgets(min(full, choice.high))
            gap_s = sum(
                knob.caches[place].miss_s
                * (knob.caches[place].hit_ratio(above[place]) - knob.caches[place].hit_ratio(there[place]))
                for place in places
            )
            if gap_s > worth_s:
                widest, worth_s, end = number, gap_s, full
        if widest is None or (choice := choices[widest]) is None:
            return []
        if not choice.low < end < choice.high:
            end = (choice.low + choice.high) / 2
        if not choice.low < end < choice.high:
            return []
        return [{**choices, widest: Between(choice.low, end)}, {**choices, widest: Between(end, choice.high)}]

    def _full(
        self, stage: Stage, knob: Knob, places: Sequence[Place], knobs: Sequence[Knob], choices: Choices
    ) -> float:
        """Return how far a knob can be turned until a unit of a stage is just not full any more, but more."""
        others = 0.0
        names = [self._problem.layers[at].name for at, _ in places]
        for number, other in enumerate(knobs):
            choice = choices.get(number)
            if other is not knob and choice is not None and (beside := _in(stage, other)):
                low = other.budgets(choice.low)
                others += sum(low[place] for place in beside)
                names += [self._problem.layers[at].name for at, _ in beside]
        room = room_for_rows(self._problem, stage, names) - others
        return knob.turned_for(places, room + BEYOND_FULL * (self._problem.resource(stage.resource).memory_bytes or 0))

    # -- better and worse ----------------------------------------------------------------------------------------------

    def _rank(self, plan: Plan) -> tuple[float, ...]:
        """Return what plans to be had are sorted by, the best first."""
        return (-plan.samples_per_s, plan.cost) if self._fastest else (plan.cost,)

    def _promise(self, plan: Plan) -> tuple[float, ...]:
        """Return what bounds are sorted by, the most promising first."""
        return (-plan.samples_per_s, plan.lower_bound) if self._fastest else (plan.lower_bound,)

    def _is_better(self, plan: Plan, than: Plan) -> bool:
        """Say whether what a plan bounds could be better than another plan, by more than counts."""
        cheaper = plan.lower_bound < than.cost * (1 - MARGIN * OPTIMAL_WITHIN)
        if not self._fastest:
            return cheaper
        if plan.samples_per_s > than.samples_per_s * (1 + SAME_SPEED):
            return True
        return cheaper and plan.samples_per_s > than.samples_per_s * (1 - SAME_SPEED)

    def _is_beaten(self, plan: Plan) -> bool:
        return self._best is not None and not self._is_better(plan, self._best)


def _in(stage: Stage, knob: Knob) -> list[Place]:
    """Return the embeddings of a stage that a knob sets, in the order of the layers."""
    if stage.resource != knob.resource:
        return []
    return sorted(place for place in knob.caches if stage.first_layer <= place[0] <= stage.last_layer)


def _on(layer: Layer, resource: str, **changes: RowCache | float | None) -> Layer:
    """Return a layer with other facts about a type."""
    time: LayerTime = msgspec.structs.replace(layer.on[resource], **changes)
    return msgspec.structs.replace(layer, on={**layer.on, resource: time})
