"""The fastest plan for the money, the curve, impossible demands and hard instances."""

import itertools
import math
import re
import time

import msgspec
import pytest

from dovetail.cost import evaluate
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.planner.demands import Demands
from dovetail.planner.plan import cheapest_plan, fastest_plan, pareto_plans
from dovetail.spec import Layer, LayerTime, Link, Problem, ResourceType, Training
from dovetail.spec.synthetic import synthetic_problem

CLOCK = time.perf_counter


def limited(problem: Problem, *limits: int | None) -> Problem:
    """Return the problem with these limits, in order."""
    resources = tuple(
        msgspec.structs.replace(resource, limit=limit)
        for resource, limit in zip(problem.resources, limits, strict=True)
    )
    return msgspec.structs.replace(problem, resources=resources)


def affordable_paces(problem: Problem, cap: float) -> list[float]:
    """Return the pace of every plan within the cap, for a problem small enough to try all."""
    import itertools

    from dovetail.spec import Stage

    names = [resource.name for resource in problem.resources]
    paces = []
    for assignment in itertools.product(names, repeat=len(problem.layers)):
        runs = [(name, len(list(group))) for name, group in itertools.groupby(assignment)]
        ends = list(itertools.accumulate(length for _, length in runs))
        for units in itertools.product(range(1, 7), repeat=len(runs)):
            stages = [
                Stage(resource=name, first_layer=end - length, last_layer=end - 1, units=k)
                for (name, length), end, k in zip(runs, ends, units, strict=True)
            ]
            priced = evaluate(problem, stages)
            if not priced.violations and priced.cost_per_hour <= cap:
                paces.append(priced.samples_per_s)
    return paces


@pytest.mark.parametrize("seed", range(6))
def test_the_fastest_plan_for_the_money_is_the_fastest_of_all_affordable_ones(seed: int) -> None:
    problem = limited(synthetic_problem(num_layers=3, num_types=2, seed=seed, min_samples_per_s=0), 6, 6)
    cap = 4 * max(resource.price_per_hour for resource in problem.resources)
    plan = fastest_plan(problem, Demands(max_cost_per_hour=cap), clock=CLOCK)

    assert plan.samples_per_s == pytest.approx(max(affordable_paces(problem, cap)), rel=1e-9)
    assert plan.cost_per_hour <= cap
    assert plan.optimal


def test_too_little_money_is_answered_with_the_least_that_would_do() -> None:
    problem = synthetic_problem(num_layers=4, num_types=3, seed=1, min_samples_per_s=20_000)
    with pytest.raises(NoPlanError) as caught:
        fastest_plan(problem, Demands(max_cost_per_hour=0.01), clock=CLOCK)
    enough = float(re.search(r"raise --max-cost-per-hour to ([\d.e+]+)", caught.value.hint).group(1))

    assert fastest_plan(problem, Demands(max_cost_per_hour=enough), clock=CLOCK).cost_per_hour <= enough
    with pytest.raises(NoPlanError):
        fastest_plan(problem, Demands(max_cost_per_hour=enough * 0.999), clock=CLOCK)


def test_the_curve_rises_and_each_of_its_plans_is_the_cheapest_at_its_pace() -> None:
    problem = limited(synthetic_problem(num_layers=4, num_types=3, seed=3, min_samples_per_s=0), 20, 20, None)
    plans = pareto_plans(problem, Demands(), points=10, clock=CLOCK)

    assert len(plans) >= 5
    for slower, faster in itertools.pairwise(plans):
        assert faster.samples_per_s > slower.samples_per_s
        assert faster.cost >= slower.cost * (1 - 1e-9)
    for plan in plans:
        rate, _ = cheapest_of_all(
            as_arrays(problem), min_samples_per_s=plan.samples_per_s * (1 - 1e-9), max_stages=None, split_stages=False
        )
        assert plan.cost == pytest.approx(rate * problem.training.total_samples / 3600, rel=1e-6)


def test_limits_that_are_too_low_are_answered_with_values_that_would_do() -> None:
    problem = limited(synthetic_problem(num_layers=4, num_types=2, seed=5, min_samples_per_s=60_000), 2, 1)
    with pytest.raises(NoPlanError, match="no plan reaches min_samples_per_s = 60000") as caught:
        cheapest_plan(problem, Demands(), clock=CLOCK)
    hint = caught.value.hint

    floor = float(re.search(r"lower `min_samples_per_s` to ([\d.e+]+)", hint).group(1))
    plan = cheapest_plan(problem.with_floor(floor), Demands(), clock=CLOCK)
    assert plan.samples_per_s >= floor
    with pytest.raises(NoPlanError):
        cheapest_plan(problem.with_floor(floor * 1.001), Demands(), clock=CLOCK)

    raised = re.findall(r"raise `limit` of `(\w+)` from (\d+) to (\d+)", hint)
    assert raised
    for name, _, enough in raised:
        for limit, possible in ((int(enough), True), (int(enough) - 1, False)):
            resources = tuple(
                msgspec.structs.replace(resource, limit=limit) if resource.name == name else resource
                for resource in problem.resources
            )
            changed = msgspec.structs.replace(problem, resources=resources)
            if possible:
                cheapest_plan(changed, Demands(), clock=CLOCK)
            else:
                with pytest.raises(NoPlanError):
                    cheapest_plan(changed, Demands(), clock=CLOCK)


def test_a_floor_above_what_serial_work_allows_can_only_be_lowered() -> None:
    half_serial = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=0.5, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=100, batch=10, min_samples_per_s=30.0),
        resources=(ResourceType(name="cpu", price_per_hour=1.0),),
        layers=(Layer(name="fc", on={"cpu": half_serial}),),
    )
    # Half a second cannot be shared: below 10 / 0.5 = 20 samples/s, whatever the units.
    with pytest.raises(NoPlanError, match="the fastest reaches 20") as caught:
        cheapest_plan(problem, Demands(), clock=CLOCK)
    assert "lower `min_samples_per_s` to 19.99" in caught.value.hint or "to 20" in caught.value.hint
    assert "limit" not in caught.value.hint


def test_too_few_stages_are_answered_with_how_many_would_do() -> None:
    time_on = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=100, batch=10),
        resources=(ResourceType(name="a", price_per_hour=1.0), ResourceType(name="b", price_per_hour=1.0)),
        layers=tuple(Layer(name=str(i), on={"ab"[i % 2]: time_on}) for i in range(3)),
    )
    with pytest.raises(NoPlanError) as caught:
        cheapest_plan(problem, Demands(max_stages=2), clock=CLOCK)
    assert "raise --max-stages from 2 to 3" in caught.value.hint


def test_types_that_no_link_joins_are_answered_with_the_missing_link() -> None:
    time_on = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=100, batch=10),
        resources=tuple(ResourceType(name=name, price_per_hour=1.0) for name in "abc"),
        layers=(Layer(name="0", on={"a": time_on}), Layer(name="1", on={"b": time_on})),
        links=(Link(source="a", target="c", bytes_per_s=1e9),),
    )
    with pytest.raises(NoPlanError, match="at any speed") as caught:
        cheapest_plan(problem, Demands(), clock=CLOCK)
    assert "[[link]]" in caught.value.hint


def test_perfectly_parallel_work_without_limits_is_still_proven_within_the_tolerance() -> None:
    # Two stages whose units never fit whole numbers together: the infimum is reached by no finite plan.
    work = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    other = LayerTime(compute_s=math.sqrt(2), comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=100, batch=10),
        resources=(ResourceType(name="a", price_per_hour=1.0), ResourceType(name="b", price_per_hour=1.0)),
        layers=(Layer(name="0", on={"a": work}), Layer(name="1", on={"b": other})),
    )
    plan = cheapest_plan(problem, Demands(time_limit_s=20), clock=CLOCK)

    infimum = 100 / 3600 * (1 + math.sqrt(2)) / 10
    assert plan.optimal
    assert plan.lower_bound <= infimum * (1 + 1e-12)
    assert plan.cost == pytest.approx(infimum, rel=1e-6)


def test_when_time_runs_out_the_gap_is_honest() -> None:
    problem = synthetic_problem(num_layers=30, num_types=12, seed=2, min_samples_per_s=100_000)
    proven = cheapest_plan(problem, Demands(), clock=CLOCK)
    ticks = iter(range(10**9))
    hurried = cheapest_plan(problem, Demands(time_limit_s=3), clock=lambda: float(next(ticks)))

    assert not hurried.optimal
    assert hurried.lower_bound <= proven.cost <= hurried.cost


def test_work_that_takes_no_time_is_refused() -> None:
    nothing = LayerTime(compute_s=0, comm_s=0, compute_parallel=1, comm_parallel=1)
    problem = Problem(
        training=Training(samples=1, batch=1),
        resources=(ResourceType(name="a", price_per_hour=1.0),),
        layers=(Layer(name="0", on={"a": nothing}),),
    )
    with pytest.raises(PlanError, match="infinitely fast"):
        cheapest_plan(problem, Demands(), clock=CLOCK)


def test_running_faster_than_the_floor_is_chosen_where_it_is_cheaper() -> None:
    # One layer of 1 s, perfectly parallel, and one that is idle beside it on its own dear unit: the dear unit is paid
    # by the hour, so finishing sooner saves more than the added cheap units cost.
    cheap = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    dear = LayerTime(compute_s=0.01, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
    problem = Problem(
        training=Training(samples=3600, batch=10, min_samples_per_s=10.0),
        resources=(ResourceType(name="cheap", price_per_hour=0.1), ResourceType(name="dear", price_per_hour=10.0)),
        layers=(Layer(name="0", on={"cheap": cheap}), Layer(name="1", on={"dear": dear})),
    )
    plan = cheapest_plan(problem, Demands(), clock=CLOCK)

    # k cheap units and one dear: (0.1 k + 10) / (10 k) falls until the dear unit is full at k = 100: 20 / 1000.
    assert plan.samples_per_s == pytest.approx(1000.0)
    assert plan.cost == pytest.approx(20.0 / 1000.0)


def test_running_out_of_time_is_never_called_a_proof_that_there_is_no_plan() -> None:
    # Every type is limited and the floor is near what can be reached: no plan is met at the first look.
    problem = synthetic_problem(num_layers=60, num_types=20, seed=3, min_samples_per_s=140_000, limit_share=1.0)
    with pytest.raises(PlanError, match="time ran out before a plan was found") as caught:
        cheapest_plan(problem, Demands(time_limit_s=0.0), clock=CLOCK)
    assert not isinstance(caught.value, NoPlanError)


def test_where_only_cuts_inside_one_type_would_do_they_are_named() -> None:
    half = LayerTime(compute_s=0.5, comm_s=0.0, compute_parallel=0.0, comm_parallel=0.0)
    problem = Problem(
        training=Training(samples=100, batch=10, min_samples_per_s=15.0),
        resources=(ResourceType(name="cpu", price_per_hour=1.0),),
        layers=(Layer(name="a", on={"cpu": half}), Layer(name="b", on={"cpu": half})),
    )
    with pytest.raises(NoPlanError) as caught:
        cheapest_plan(problem, Demands(), clock=CLOCK)
    assert "--split-stages" in caught.value.hint


def test_a_slow_link_from_a_type_to_itself_is_named_where_stages_may_be_split() -> None:
    half = LayerTime(compute_s=0.5, comm_s=0.0, compute_parallel=0.0, comm_parallel=0.0)
    problem = Problem(
        training=Training(samples=100, batch=10, min_samples_per_s=15.0),
        resources=(ResourceType(name="cpu", price_per_hour=1.0),),
        layers=(Layer(name="a", on={"cpu": half}, output_bytes=1e9), Layer(name="b", on={"cpu": half})),
        links=(Link(source="cpu", target="cpu", bytes_per_s=1e3, latency_s=1.0),),
    )
    with pytest.raises(NoPlanError) as caught:
        cheapest_plan(problem, Demands(split_stages=True), clock=CLOCK)
    assert "[[link]]" in caught.value.hint
