"""The exact planner on machines, with readers, servers and places of rows, against every layout tried one by one."""

import random
import time

import pytest

from dovetail.cost import evaluate, evaluate_plan
from dovetail.errors import NoPlanError
from dovetail.planner.demands import Demands
from dovetail.planner.plan import cheapest_plan, fastest_plan
from dovetail.spec import Plan, Problem, Stage
from tests.planner.layouts_tried import Trial, Tried, drawn


def planned(problem: Problem, demands: Demands, *, fastest: bool = False) -> Plan | None:
    ask = fastest_plan if fastest else cheapest_plan
    try:
        return ask(problem, demands, clock=time.perf_counter)
    except NoPlanError:
        return None


def compare(seed: int) -> int:
    """Compare the cheapest plans at three floors and the fastest within two caps; return how many plans there were."""
    problem, max_stages = drawn(seed)
    draw, count = random.Random(-seed), 0
    tried = list(Trial(problem, max_stages=max_stages).all())
    demands = Demands(max_stages=max_stages, time_limit_s=600.0)
    top = max((each.samples_per_s for each in tried), default=50.0)
    for floor in (0.0, top * draw.uniform(0.3, 0.99), top * (1 - 1e-12)):
        expected = min((each.usd for each in tried if each.samples_per_s >= floor), default=None)
        plan = planned(problem.with_floor(floor), demands)
        check(problem.with_floor(floor), plan, expected)
        count += plan is not None
        if plan is not None:
            assert plan.cost == pytest.approx(expected, rel=1e-6), (seed, floor)
    cheap = min((each.usd_per_hour for each in tried), default=1.0)
    dear = max((each.usd_per_hour for each in tried), default=1.0)
    for cap in (cheap + (dear - cheap) * draw.random(), dear * 1.01):
        quick = max((each.samples_per_s for each in tried if each.usd_per_hour <= cap), default=None)
        plan = planned(problem, Demands(max_stages=max_stages, max_cost_per_hour=cap, time_limit_s=600.0), fastest=True)
        check(problem, plan, quick)
        count += plan is not None
        if plan is not None:
            assert plan.samples_per_s == pytest.approx(quick, rel=1e-6), (seed, cap)
            assert plan.cost_per_hour <= cap * (1 + 1e-9)
            as_fast = [e.usd for e in tried if e.usd_per_hour <= cap and e.samples_per_s >= quick * (1 - 1e-9)]
            assert plan.cost == pytest.approx(min(as_fast), rel=1e-6), (seed, cap)
    return count


def check(problem: Problem, plan: Plan | None, expected: float | None) -> None:
    """There is a plan where there should be one, proven, and the evaluator says the same of it."""
    assert (plan is None) == (expected is None)
    if plan is None:
        return
    # Within a cap on what units cost an hour, one over it may pay less for bytes: then the bound is no proof.
    has_cap = problem.min_samples_per_s == 0.0 and bool(problem.site_links)
    assert plan.optimal or has_cap
    assert plan.lower_bound <= plan.cost
    priced = evaluate_plan(problem, plan)
    assert not priced.violations
    assert priced.cost == pytest.approx(plan.cost, rel=1e-12)
    assert (plan.place is None) == (problem.beside is None)


@pytest.mark.parametrize("seed", [*range(200), 4064, 17644])  # the last two pay for bytes between sites
def test_on_drawn_machines_the_planner_finds_what_trying_every_layout_finds(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_on_thousands_of_drawn_machines_too(block: int) -> None:
    assert sum(compare(seed) for seed in range(1000 + 100 * block, 1100 + 100 * block)) > 100


@pytest.mark.parametrize("seed", range(0, 200, 4))
def test_the_evaluator_prices_every_layout_as_trying_it_does(seed: int) -> None:
    problem, max_stages = drawn(seed)
    tried = list(Trial(problem, max_stages=max_stages).all())
    for each in random.Random(seed).sample(tried, min(len(tried), 40)):
        found = evaluate(
            problem,
            with_rows(problem, each),
            place=each.place,
            servers=each.servers,
            readers=each.readers,
        )
        assert not found.violations
        assert problem.training.batch / found.samples_per_s == pytest.approx(each.batch_s, rel=1e-9)
        assert found.cost_per_hour == pytest.approx(each.usd_per_hour, rel=1e-9)
        assert found.cost == pytest.approx(each.usd, rel=1e-9)


def with_rows(problem: Problem, each: Tried) -> list[Stage]:
    """Return the stages of a layout, with the rows that one process on an accelerator has room for."""
    stages = [Stage(resource=name, first_layer=a, last_layer=b, units=k) for name, a, b, k in each.stages]
    is_whole = problem.beside is not None and any(
        (whole.place, whole.resource, whole.units) == (each.place, each.stages[0][0], each.stages[0][3])
        for whole in problem.beside.wholes
    )
    if each.place != "local" or is_whole:
        return stages
    name = each.stages[0][0]
    trial = Trial(problem)
    has, holds = trial.types[name].memory_bytes, trial_held(problem)
    caches = [layer for layer in problem.layers if layer.on[name].cache is not None]
    if not caches or has is None or holds <= has:
        return stages
    (layer,) = caches
    room = has - (holds - layer.weight_bytes - layer.optimizer_bytes - layer.index_bytes)
    stage = stages[0]
    return [Stage(resource=name, first_layer=0, last_layer=stage.last_layer, units=1, row_budgets={layer.name: room})]


def trial_held(problem: Problem) -> float:
    from tests.planner.layouts_tried import held

    return held(list(problem.layers), 1)
