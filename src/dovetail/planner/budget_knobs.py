"""What can be turned where embeddings may keep only some rows: one number for one of them, or for all on a type."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.planner.budget_fill import least_of
from dovetail.planner.demands import Demands
from dovetail.spec import Problem, RowCache

Place = tuple[int, str]
"""An embedding by its position, and a type that it may be on."""
HALVINGS = 200


@dataclass(frozen=True, slots=True)
class Knob:
    """Budgets of some embeddings on one type, none of which falls where the knob is turned up: from 0 to `most`."""

    resource: str
    caches: Mapping[Place, RowCache]
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
        rising = [(place, *line) for place, cache in caches.items() for line in _hull(cache)]
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
        len(_hull(cache)) == sum(held > least_of(cache) for held, _ in cache.hits) for cache in knob.caches.values()
    )
    return in_one_stage and is_bent and not demands.split_stages


def places_with_choice(problem: Problem) -> dict[Place, RowCache]:
    """Return where embeddings may keep only some of their rows, and what that costs."""
    return {
        (position, name): time.cache
        for position, layer in enumerate(problem.layers)
        for name, time in layer.on.items()
        if time.cache is not None
    }


def _hull(cache: RowCache) -> list[tuple[float, float]]:
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
