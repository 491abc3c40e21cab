"""Brute force itself, against a search that tries every number of units in plain Python."""

import itertools
import math

import pytest

from dovetail.cost import evaluate
from dovetail.errors import PlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Stage, Training
from dovetail.spec.synthetic import synthetic_problem

MOST_UNITS = 6


def small_problem(seed: int, *, floor: float, link_share: float = 0.0) -> Problem:
    """Return three layers on two types of which there are six units each."""
    problem = synthetic_problem(
        num_layers=3, num_types=2, seed=seed, min_samples_per_s=floor, limit_share=1.0, link_share=link_share
    )
    return Problem(
        training=problem.training,
        resources=tuple(
            ResourceType(name=resource.name, price_per_hour=resource.price_per_hour, limit=MOST_UNITS)
            for resource in problem.resources
        ),
        layers=problem.layers,
        links=problem.links,
    )


def naive_cost(problem: Problem) -> float:
    """Return the least cost over every assignment and every number of units, by the evaluator alone."""
    best = math.inf
    names = [resource.name for resource in problem.resources]
    for assignment in itertools.product(names, repeat=len(problem.layers)):
        runs = [(name, len(list(group))) for name, group in itertools.groupby(assignment)]
        ends = list(itertools.accumulate(length for _, length in runs))
        for units in itertools.product(range(1, MOST_UNITS + 1), repeat=len(runs)):
            stages = [
                Stage(resource=name, first_layer=end - length, last_layer=end - 1, units=k)
                for (name, length), end, k in zip(runs, ends, units, strict=True)
            ]
            try:
                priced = evaluate(problem, stages)
            except PlanError:
                break
            if not priced.violations:
                best = min(best, priced.cost)
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("link_share", [0.0, 1.0])
def test_brute_force_finds_the_cheapest_of_every_assignment_and_number_of_units(seed: int, link_share: float) -> None:
    floor = [0.0, 20_000.0, 80_000.0][seed % 3]
    problem = small_problem(seed, floor=floor, link_share=link_share)
    rate, _ = cheapest_of_all(as_arrays(problem), min_samples_per_s=floor, max_stages=None, split_stages=False)

    assert rate * problem.training.total_samples / 3600 == pytest.approx(naive_cost(problem), rel=1e-9)


def test_brute_force_refuses_more_than_a_million_plans_and_says_how_many() -> None:
    time = LayerTime(compute_s=1, comm_s=1, compute_parallel=1, comm_parallel=1)
    problem = Problem(
        training=Training(samples=1, batch=1),
        resources=tuple(ResourceType(name=str(t), price_per_hour=1) for t in range(10)),
        layers=tuple(Layer(name=str(i), on={str(t): time for t in range(10)}) for i in range(7)),
    )

    with pytest.raises(PlanError, match=r"10,000,000 plans \(10 types, 7 layers\)"):
        cheapest_of_all(as_arrays(problem), min_samples_per_s=0, max_stages=None, split_stages=False)
