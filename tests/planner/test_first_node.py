"""A first node that every plan pays for by the hour: plans against every plan of a small problem, priced here."""

import itertools
import random
import time

import msgspec
import pytest

from dovetail.cost import evaluate, evaluate_plan
from dovetail.errors import NoPlanError, SpecError
from dovetail.planner.demands import Demands
from dovetail.planner.methods import plan_with
from dovetail.planner.plan import cheapest_plan, fastest_plan, pareto_plans
from dovetail.spec import Problem, Stage
from dovetail.spec.first_node import FirstNode
from dovetail.spec.synthetic import synthetic_problem
from tests.planner.layouts_tried import Trial, drawn

CLOCK = time.perf_counter
MOST_UNITS = 6


def limited(problem: Problem, *, first_node: float = 0.0) -> Problem:
    resources = tuple(msgspec.structs.replace(each, limit=MOST_UNITS) for each in problem.resources)
    paid = FirstNode(price_per_hour=first_node) if first_node else None
    return msgspec.structs.replace(problem, resources=resources, first_node=paid)


def every_plan(problem: Problem, first_node: float) -> list[tuple[float, float, float]]:
    """Return samples/s, USD an hour and USD of every legal plan: units by the evaluator, the first node by hand."""
    alone = msgspec.structs.replace(problem, first_node=None)
    names, found = [each.name for each in problem.resources], []
    for types in itertools.product(names, repeat=len(problem.layers)):
        runs = [(name, len(list(group))) for name, group in itertools.groupby(types)]
        ends = list(itertools.accumulate(length for _, length in runs))
        for units in itertools.product(range(1, MOST_UNITS + 1), repeat=len(runs)):
            stages = [
                Stage(resource=name, first_layer=end - length, last_layer=end - 1, units=k)
                for (name, length), end, k in zip(runs, ends, units, strict=True)
            ]
            priced = evaluate(alone, stages)
            if not priced.violations:
                hourly = priced.cost_per_hour + first_node
                found.append((priced.samples_per_s, hourly, priced.hours * hourly))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_the_cheapest_plan_with_a_first_node_is_the_cheapest_of_all_plans_that_pay_for_it(seed: int) -> None:
    first_node = random.Random(seed).choice([0.05, 1.0, 20.0, 400.0])
    problem = limited(
        synthetic_problem(num_layers=3, num_types=2, seed=seed, min_samples_per_s=0), first_node=first_node
    )

    plan = cheapest_plan(problem, Demands(), clock=CLOCK)

    assert plan.cost == pytest.approx(min(usd for _, _, usd in every_plan(problem, first_node)), rel=1e-9)
    assert plan.optimal
    assert plan.lower_bound <= plan.cost
    assert plan.first_node_per_hour == first_node
    assert evaluate_plan(problem, plan).cost_per_hour == pytest.approx(plan.cost_per_hour)


@pytest.mark.parametrize("seed", range(3))
def test_the_fastest_plan_for_the_money_pays_for_the_first_node_out_of_it(seed: int) -> None:
    dearest = max(each.price_per_hour for each in synthetic_problem(num_layers=3, num_types=2, seed=seed).resources)
    cap, first_node = 5 * dearest, 1.5 * dearest
    problem = limited(
        synthetic_problem(num_layers=3, num_types=2, seed=seed, min_samples_per_s=0), first_node=first_node
    )

    plan = fastest_plan(problem, Demands(max_cost_per_hour=cap), clock=CLOCK)

    paces = [pace for pace, hourly, _ in every_plan(problem, first_node) if hourly <= cap]
    assert plan.samples_per_s == pytest.approx(max(paces), rel=1e-9)
    assert plan.cost_per_hour <= cap
    with pytest.raises(NoPlanError, match="costs at most"):
        fastest_plan(problem, Demands(max_cost_per_hour=first_node), clock=CLOCK)


def test_a_dearer_first_node_makes_faster_plans_worth_more_units() -> None:
    problem = synthetic_problem(num_layers=4, num_types=2, seed=3, min_samples_per_s=0)
    plans = [
        cheapest_plan(limited(problem, first_node=price), Demands(), clock=CLOCK) for price in (0.0, 5.0, 50.0, 5000.0)
    ]
    paces = [plan.samples_per_s for plan in plans]

    assert paces == sorted(paces)
    assert paces[-1] > paces[0]


@pytest.mark.parametrize("method", ["brute-force", "genetic", "greedy"])
def test_other_methods_pay_for_the_first_node_too(method: str) -> None:
    problem = limited(synthetic_problem(num_layers=3, num_types=2, seed=5, min_samples_per_s=0), first_node=30.0)

    plan = plan_with(method, problem, Demands(), clock=CLOCK)

    cheapest = min(usd for _, _, usd in every_plan(problem, 30.0))
    assert plan.first_node_per_hour == 30.0
    assert plan.cost >= cheapest * (1 - 1e-9)
    assert plan.lower_bound == pytest.approx(cheapest, rel=1e-6)
    if method == "brute-force":
        assert plan.cost == pytest.approx(cheapest, rel=1e-9)


@pytest.mark.parametrize("seed", [*range(12), 4064, 17644])
def test_with_machines_and_servers_every_layout_pays_for_it_too(seed: int) -> None:
    problem, max_stages = drawn(seed)
    layouts, training = list(Trial(problem, max_stages=max_stages).all()), problem.training
    first_node = random.Random(seed).choice([0.1, 2.0, 30.0])
    paying = msgspec.structs.replace(problem.with_floor(0.0), first_node=FirstNode(price_per_hour=first_node))
    batches = training.total_samples / training.batch
    costs = [each.usd + batches * each.batch_s / 3600 * first_node for each in layouts]
    if not costs:
        with pytest.raises(NoPlanError):
            cheapest_plan(paying, Demands(max_stages=max_stages), clock=CLOCK)
        return

    plan = cheapest_plan(paying, Demands(max_stages=max_stages, time_limit_s=600.0), clock=CLOCK)

    assert plan.optimal
    assert plan.cost == pytest.approx(min(costs), rel=1e-6)
    assert evaluate_plan(paying, plan).cost == pytest.approx(plan.cost, rel=1e-12)


def test_plans_along_the_curve_each_pay_for_it() -> None:
    problem = limited(synthetic_problem(num_layers=3, num_types=2, seed=1, min_samples_per_s=0), first_node=7.0)
    alone = msgspec.structs.replace(problem, first_node=None)

    for plan in pareto_plans(problem, Demands(), points=4, clock=CLOCK):
        assert plan.cost_per_hour == pytest.approx(evaluate(alone, plan.stages).cost_per_hour + 7.0)


def test_a_problem_without_one_is_the_same_problem_as_before_and_the_papers_has_none() -> None:
    problem = synthetic_problem(num_layers=3, num_types=2, seed=0)
    paying = msgspec.structs.replace(problem, first_node=FirstNode(price_per_hour=1.0))

    assert paying.digest() != problem.digest()
    assert paying.as_in_paper() == problem
    assert cheapest_plan(problem, Demands(), clock=CLOCK).first_node_per_hour is None


def test_a_first_node_of_a_negative_price_is_refused() -> None:
    with pytest.raises(SpecError, match="price_per_hour"):
        FirstNode(price_per_hour=-1.0)
