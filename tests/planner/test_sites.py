"""Planning over sites: exact against brute force, brute force against every plan there is, and when crossing pays."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.cost import evaluate
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.planner.demands import Demands
from dovetail.planner.methods import METHODS, Options, plan_with
from dovetail.planner.plan import fastest_plan, pareto_plans
from dovetail.planner.replan import better_plan
from dovetail.spec import Plan, Problem, SiteLink, read_problem
from dovetail.spec.synthetic import synthetic_problem
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages
from tests.planner.test_brute_force import MOST_UNITS, naive_cost

EXAMPLE = Path(__file__).parents[2] / "examples" / "problems" / "two-sites.toml"
FLOORS = st.sampled_from([0.0, 5e3, 2e4, 1e5])
SHAPES = st.sampled_from([(2, 3), (3, 3), (4, 2), (4, 4), (5, 3), (6, 2), (7, 2), (6, 3)])


def drawn(seed: int, *, layers: int, types: int, floor: float, links: float = 0.0, limits: float = 0.0) -> Problem:
    """Return a problem whose types stand at two or three sites."""
    return synthetic_problem(
        num_layers=layers,
        num_types=types,
        seed=seed,
        min_samples_per_s=floor,
        link_share=links,
        limit_share=limits,
        hole_share=0.3,  # so that many problems cannot do without crossing
        num_sites=2 + seed % 2,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    layers, types = draw(SHAPES)
    problem = drawn(
        draw(st.integers(0, 10**6)),
        layers=layers,
        types=types,
        floor=draw(FLOORS),
        links=draw(st.sampled_from([0.0, 0.8])),
        limits=draw(st.sampled_from([0.0, 0.7])),
    )
    dearer = draw(st.sampled_from([1.0, 1.0, 1000.0]))  # so that bytes may cost far more than units
    links = tuple(msgspec.structs.replace(link, price_per_gb=dearer * link.price_per_gb) for link in problem.site_links)
    return msgspec.structs.replace(problem, site_links=links)


def planned(method: str, problem: Problem, **shape: object) -> Plan | None:
    """Return a method's plan, priced again by the evaluator, or None where it proves that there is none."""
    try:
        plan = plan_with(method, problem, Demands(**shape), clock=time.perf_counter)
    except NoPlanError:
        return None
    checked = evaluate(problem, plan.stages)
    assert not checked.violations
    assert checked.cost == pytest.approx(plan.cost, rel=1e-12)
    assert checked.egress_cost == pytest.approx(plan.egress_cost or 0.0, rel=1e-12)
    return plan


@settings(max_examples=250, deadline=None, derandomize=True)
@given(problem=problems(), max_stages=st.sampled_from([None, None, 2, 3]))
def test_over_sites_exact_is_proven_and_costs_what_brute_force_costs(problem: Problem, max_stages: int | None) -> None:
    exact, tried = (planned(method, problem, max_stages=max_stages) for method in ("exact", "brute-force"))

    event("impossible" if exact is None else "pays egress" if exact.egress_cost else "stays at a site")
    assert (exact is None) == (tried is None)
    if exact is not None and tried is not None:
        assert exact.optimal
        assert exact.cost == pytest.approx(tried.cost, rel=1e-7)


@pytest.mark.parametrize("seed", range(16))
def test_over_sites_brute_force_finds_the_cheapest_of_every_assignment_and_number_of_units(seed: int) -> None:
    floor = [0.0, 20_000.0, 80_000.0][seed % 3]
    problem = synthetic_problem(
        num_layers=3, num_types=2, seed=seed, min_samples_per_s=floor, link_share=seed % 2, num_sites=2
    )
    resources = tuple(msgspec.structs.replace(resource, limit=MOST_UNITS) for resource in problem.resources)
    problem = msgspec.structs.replace(problem, resources=resources)
    rate, _ = cheapest_of_all(as_arrays(problem), min_samples_per_s=floor, max_stages=None, split_stages=False)

    assert rate * problem.training.total_samples / 3600 == pytest.approx(naive_cost(problem), rel=1e-9)


def two_sites(*, price_per_gb: float, bytes_per_s: float = 1e9, samples: int = 3600, **training: float) -> Problem:
    """Return a model of which the first layer is cheap in `eu` and the second in `us`, with 1 GB between the two."""
    slow, fast = make_layer_time(10.0), make_layer_time(1.0)
    return msgspec.structs.replace(
        make_problem(
            layers=[
                make_layer("first", {"cpu": fast, "gpu": slow}, output_bytes=1e9),
                make_layer("second", {"cpu": slow, "gpu": fast}),
            ],
            resources=[make_resource("cpu", 1.0, site="eu"), make_resource("gpu", 1.0, site="us")],
            samples=samples,
            **training,
        ),
        site_links=(SiteLink(source="eu", target="us", bytes_per_s=bytes_per_s, price_per_gb=price_per_gb),),
    )


def stages_of(plan: Plan) -> list[tuple[str, int]]:
    return [(stage.resource, stage.units) for stage in plan.stages]


@pytest.mark.parametrize(
    ("price_per_gb", "stages", "cost"),
    [
        # 3600 batches; 2 s each for the 1 GB there and back: 2 h at 2 USD, and 7200 GB
        (0.0, [("cpu", 1), ("gpu", 1)], 4.0),
        (0.0005, [("cpu", 1), ("gpu", 1)], 7.6),
        # 11 s a batch on one cpu: 11 h at 1 USD, and nothing crosses
        (0.001, [("cpu", 1)], 11.0),
    ],
)
@pytest.mark.parametrize("method", ["exact", "brute-force", "genetic"])
def test_a_plan_crosses_between_sites_while_that_costs_less_than_it_saves(method, price_per_gb, stages, cost):
    plan = planned(method, two_sites(price_per_gb=price_per_gb), max_stages=None)

    assert plan is not None
    assert plan.cost == pytest.approx(cost)
    assert len(stages_of(plan)) == len(stages)
    assert plan.egress_bytes == (pytest.approx(7200e9) if len(stages) == 2 else None)


def test_a_policy_learns_that_crossing_does_not_pay():
    problem = two_sites(price_per_gb=0.001)
    plan = plan_with("rl", problem, Demands(), clock=time.perf_counter, options=Options(seed=1, rounds=40))

    assert plan.cost == pytest.approx(11.0)
    assert plan.egress_cost is None


def test_in_the_example_the_price_of_bytes_moves_the_cut_to_where_few_of_them_cross():
    problem = read_problem(EXAMPLE)
    free = tuple(msgspec.structs.replace(link, price_per_gb=0.0) for link in problem.site_links)
    with_price, without = (
        planned("exact", each) for each in (problem, msgspec.structs.replace(problem, site_links=free))
    )

    assert with_price is not None
    assert without is not None
    # 400e6 / 4096 batches, both ways.
    assert without.egress_bytes == pytest.approx(400e6 / 4096 * 2 * 6_815_744)
    assert with_price.egress_bytes == pytest.approx(400e6 / 4096 * 2 * 262_144)
    assert with_price.egress_cost == pytest.approx(400e6 / 4096 * 262_144 / 1e9 * 0.02)
    assert evaluate(problem, without.stages).egress_cost == pytest.approx(13.31, abs=0.005)  # as the guide says


def test_more_units_do_not_speed_up_the_link_between_two_sites():
    # There and back 1 GB at 0.25 GB/s: 8 s a batch whatever is rented, so no more than 0.125 samples/s over the cut.
    problem = two_sites(price_per_gb=0.0, bytes_per_s=0.25e9)

    for units in (1, 10, 1000):
        assert evaluate(problem, make_stages(("cpu", 0, 0, units), ("gpu", 1, 1, units))).samples_per_s == 0.125


@pytest.mark.parametrize("method", METHODS)
def test_every_method_prices_egress_as_the_evaluator_does(method):
    problem = two_sites(price_per_gb=0.0005)
    rounds = 3 if method in ("genetic", "bayesian", "rl", "rl-rnn", "rl-joint") else None
    plan = plan_with(method, problem, Demands(), clock=time.perf_counter, options=Options(seed=1, rounds=rounds))

    # 7200 GB at 0.05 cents each where the two sites work together; see above for the hours.
    assert plan.egress_cost == (None if len(plan.stages) == 1 else pytest.approx(3.6))
    assert plan.cost == pytest.approx(plan.hours * plan.cost_per_hour + (plan.egress_cost or 0.0))
    assert plan.lower_bound == pytest.approx(7.6)


def test_without_a_floor_a_plan_that_is_slower_and_dearer_per_hour_may_be_the_cheapest_in_all():
    # Over the sites: 2 USD/h at 2 s a batch. Alone: 2.5 USD/h for one `lone` at 4 s a batch, and no egress.
    problem = two_sites(price_per_gb=0.001)
    lone, alone = make_resource("lone", 2.5, site="an island"), make_layer_time(2.0, compute_parallel=0.0)
    layers = tuple(
        make_layer(layer.name, {where: layer.on[where], "lone": alone}, output_bytes=layer.output_bytes)
        for layer, where in zip(problem.layers, ("cpu", "gpu"), strict=True)
    )
    problem = msgspec.structs.replace(problem, resources=(*problem.resources, lone), layers=layers)
    plan = planned("exact", problem)

    # 2 h at 2 USD and 7.2 USD of egress are 11.2 USD; 4 h at 2.5 USD are 10.
    assert plan is not None
    assert stages_of(plan) == [("lone", 1)]
    assert plan.cost == pytest.approx(10.0)
    assert plan.optimal


def test_the_fastest_plan_for_the_money_counts_units_and_says_the_egress_apart():
    problem = two_sites(price_per_gb=1.0)
    plan = fastest_plan(problem, Demands(max_cost_per_hour=2.0), clock=time.perf_counter)

    # 2 USD/h buy a cpu and a gpu, 2 s a batch over the link, against 5.5 s on two units of one type.
    assert plan.samples_per_s == pytest.approx(0.5)
    assert plan.cost_per_hour == pytest.approx(2.0)
    assert plan.egress_cost == pytest.approx(7200.0)
    assert plan.cost == pytest.approx(7204.0)


def test_problems_over_sites_can_be_made_up_and_planned(tmp_path: Path):
    made = CliRunner().invoke(app, ["problem", "make", str(tmp_path / "made.toml"), "--sites", "2", "--types", "4"])
    assert made.exit_code == 0
    problem = read_problem(tmp_path / "made.toml")

    assert {resource.site for resource in problem.resources} == {"site0", "site1"}
    assert problem.site_links
    plan = planned("exact", problem)
    assert plan is not None
    assert plan.optimal


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_along_the_curve_of_cost_against_speed_more_speed_costs_more(problem: Problem) -> None:
    try:
        plans = pareto_plans(problem, Demands(), points=4, clock=time.perf_counter)
    except NoPlanError:
        return

    assert all(plan.optimal for plan in plans)
    for slower, faster in itertools.pairwise(plans):
        assert faster.samples_per_s > slower.samples_per_s
        assert faster.cost >= slower.cost * (1 - 1e-6)


def test_a_running_plan_is_not_moved_over_a_link_that_eats_what_is_gained():
    running = make_stages(("cpu", 0, 1, 2))

    # Two units each way: 5.5 s a batch at home, 2 s over the link.
    move = better_plan(two_sites(price_per_gb=0.0), running, clock=time.perf_counter)
    assert move is not None
    assert move.after_samples_per_s == pytest.approx(0.5)
    assert better_plan(two_sites(price_per_gb=1.0), running, clock=time.perf_counter) is None


def test_where_the_link_between_sites_is_too_slow_for_the_floor_the_hint_says_so():
    problem = two_sites(price_per_gb=0.0, bytes_per_s=1e6, min_samples_per_s=0.01)
    only_there = {
        name: make_layer(name, {place: make_layer_time(1.0)}, output_bytes=1e9)
        for name, place in (("first", "cpu"), ("second", "gpu"))
    }
    problem = msgspec.structs.replace(problem, layers=tuple(only_there.values()))

    # 2 GB at 1 MB/s: 2000 s a batch.
    with pytest.raises(NoPlanError, match=r"the fastest reaches 0\.0005") as refused:
        plan_with("exact", problem, Demands(), clock=time.perf_counter)
    assert "speed up a [[site_link]]" in refused.value.hint


def test_types_of_sites_without_a_link_are_not_neighbours():
    problem = two_sites(price_per_gb=0.0)
    third = make_resource("tpu", 0.1, site="asia")
    layers = tuple(
        msgspec.structs.replace(
            layer, on={**layer.on, "tpu": make_layer_time(0.5)} if layer.name == "second" else layer.on
        )
        for layer in problem.layers
    )
    problem = msgspec.structs.replace(problem, resources=(*problem.resources, third), layers=layers)
    # `asia` is a site that nothing joins.
    plan = planned("exact", problem)
    assert plan is not None
    assert "tpu" not in [stage.resource for stage in plan.stages]

    with pytest.raises(PlanError, match="no link joins the two sites") as refused:
        evaluate(problem, make_stages(("cpu", 0, 0, 1), ("tpu", 1, 1, 1)))
    assert '[[site_link]] from = "eu" to = "asia"' in refused.value.hint
