"""How much memory an embedding's rows are given: the best budgets of all, and the proof that none are better."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from dovetail.cost.row_budget import with_budget
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.exact import MARGIN, OPTIMAL_WITHIN, Clock
from dovetail.planner.row_budgets.fill import LEAST_BYTES, filled, least_of, priced, room_for_rows, with_budgets
from dovetail.spec import Layer, LayerTime, Plan, Problem, RowCacheCurve, Stage

Place = tuple[int, str]
"""An embedding by its position, and a type that it may be on."""
HALVINGS = 200

PlanOne = Callable[[Problem, Demands], Plan]
BEYOND_FULL = 1e-11
"""Of a unit's memory: so much more than full counts as not fitting, whatever rounding does."""
SAME_SPEED = 1e-9


@dataclass(frozen=True, slots=True)
class Knob:
    """Budgets of some embeddings on one type, none of which falls where the knob is turned up: from 0 to `most`."""

    resource: str
    caches: Mapping[Place, RowCacheCurve]
    segments: tuple[tuple[Place, float], ...]
    """Bytes that are given out, one after the other, and to whom."""

    @property
    def most(self) -> float:
        """How far it can be turned."""
        return sum(held for _, held in self.segments)

    def budgets(self, turned: float) -> dict[Place, float]:
        """Return the bytes of each embedding."""
        given = {place: least_of(cache) for place, cache in self.caches.items()}
        for place, held in self.segments:
            part = min(held, turned)
            if part <= 0:
                break
            given[place] += part
            turned -= part
        return given

    def turned_for(self, places: Sequence[Place], total: float) -> float:
        """Return how far it can be turned until some embeddings have so many bytes together."""
        low, high = 0.0, self.most
        if sum(held for place, held in self.budgets(high).items() if place in places) <= total:
            return high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            given = sum(held for place, held in self.budgets(middle).items() if place in places)
            low, high = (middle, high) if given <= total else (low, middle)
        return low


def knobs_by_place(problem: Problem) -> tuple[Knob, ...]:
    """Return a knob for each embedding on each type where it may keep only some rows."""
    return tuple(
        Knob(place[1], {place: cache}, ((place, max(0.0, cache.hits[-1][0] - least_of(cache))),))
        for place, cache in places_with_choice(problem).items()
    )


def knobs_by_type(problem: Problem) -> tuple[Knob, ...]:
    """Return a knob for each type: its embeddings get bytes in the order of what a byte saves."""
    places = places_with_choice(problem)
    knobs = []
    for resource in dict.fromkeys(name for _, name in places):
        caches = {place: cache for place, cache in places.items() if place[1] == resource}
        rising = [(place, *line) for place, cache in caches.items() for line in hull(cache)]
        rising.sort(key=lambda each: -each[2])  # stable: each embedding's own lines stay in their order
        knobs.append(Knob(resource, caches, tuple((place, held) for place, held, _ in rising)))
    return tuple(knobs)


def one_knob_loses_nothing(knob: Knob, demands: Demands) -> bool:
    """Say whether no other budgets than those that a type's knob sets could be better.

    So it is with one embedding. With several it is where all are in one stage, if their curves never get steeper. A
    second stage on the type needs three stages, and a layer between the two that is on another type.
    """
    if len(knob.caches) == 1:
        return True
    one, *others = sorted(position for position, _ in knob.caches)
    in_one_stage = demands.max_stages is not None and demands.max_stages <= 2
    in_one_stage = in_one_stage or others == [one + 1]
    is_bent = all(
        len(hull(cache)) == sum(held > least_of(cache) for held, _ in cache.hits) for cache in knob.caches.values()
    )
    return in_one_stage and is_bent and not demands.split_stages


def places_with_choice(problem: Problem) -> dict[Place, RowCacheCurve]:
    """Return where embeddings may keep only some of their rows, and what that costs."""
    return {
        (position, name): time.cache
        for position, layer in enumerate(problem.layers)
        for name, time in layer.on.items()
        if time.cache is not None
    }


def hull(cache: RowCacheCurve) -> list[tuple[float, float]]:
    """Return the lines of the least curve above an embedding's that never gets steeper: (bytes, worth of a byte)."""
    least = least_of(cache)
    points = [(least, cache.hit_ratio(least)), *(each for each in cache.hits if each[0] > least)]
    lines: list[tuple[float, float]] = []
    for (held, part), (next_held, next_part) in itertools.pairwise(points):
        lines.append((next_held - held, next_part - part))
        while len(lines) > 1 and lines[-1][1] * lines[-2][0] > lines[-2][1] * lines[-1][0]:
            last, before = lines.pop(), lines.pop()
            lines.append((before[0] + last[0], before[1] + last[1]))
    return [(held, cache.miss_s * gain / held) for held, gain in lines]


@dataclass(frozen=True, slots=True)
class Between:
    """Settings from `low` to `high`."""

    low: float
    high: float


Choices = Mapping[int, Between | None]
"""By knob: settings, or None for keeping all rows. A knob that is not named may still have either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetResult:
    """The best plan, where one was met, and the plans that bound all others."""

    best: Plan | None
    bounds: tuple[Plan, ...]


class BudgetSearch:
    """One search; `fastest` asks for speed first and money second, else money counts alone.

    A knob that sets budgets is between two bounds. A problem that takes what the upper one saves and only what the
    lower one needs is easier than any setting between: its plan's cost is a bound for all of them. The plan itself, its
    units' memory filled with rows, is a plan to be had. Where the two differ, the bounds are parted where the memory
    was full: below, nothing is better than the plan found; above, this plan does not fit. The most promising bounds
    come first.
    """

    def __init__(
        self, problem: Problem, demands: Demands, plan_one: PlanOne, *, fastest: bool, clock: Clock, deadline_s: float
    ) -> None:
        self._problem, self._demands, self._plan_one = problem, demands, plan_one
        self._fastest, self._clock, self._deadline_s = fastest, clock, deadline_s
        self._best: Plan | None = None

    def run(
        self, knobs: Sequence[Knob], *, best: Plan | None = None, most_questions: int | None = None
    ) -> BudgetResult:
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
        return BudgetResult(best=self._best, bounds=(*settled, *(plan for *_, plan in queue)))

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


def _on(layer: Layer, resource: str, **changes: RowCacheCurve | float | None) -> Layer:
    """Return a layer with other facts about a type."""
    time: LayerTime = msgspec.structs.replace(layer.on[resource], **changes)
    return msgspec.structs.replace(layer, on={**layer.on, resource: time})
