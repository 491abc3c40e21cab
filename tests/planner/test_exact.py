"""The exact planner against brute force, on problems drawn by hypothesis."""

import math
import time

import msgspec
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from dovetail.cost import evaluate
from dovetail.errors import NoPlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.planner.demands import Demands
from dovetail.planner.methods import plan_with
from dovetail.planner.plan import fastest_plan
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Training
from dovetail.spec.synthetic import synthetic_problem

FLOORS = st.sampled_from([0.0, 5e3, 2e4, 5e4, 1e5, 4e5])
SHAPES = st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 3), (4, 2), (4, 4), (5, 3), (6, 2), (7, 2), (6, 3)])


@st.composite
def problems(draw: st.DrawFn, *, links: bool = False) -> Problem:
    num_layers, num_types = draw(SHAPES)
    return synthetic_problem(
        num_layers=num_layers,
        num_types=num_types,
        seed=draw(st.integers(0, 10**6)),
        min_samples_per_s=draw(FLOORS),
        link_share=0.8 if links else 0.0,
        hole_share=draw(st.sampled_from([0.0, 0.2])),
    )


def cost_by(method: str, problem: Problem, **shape: object) -> float:
    """Return the cost of a method's plan, or infinity where it proves that there is none."""
    demands = Demands(**shape)
    try:
        plan = plan_with(method, problem, demands, clock=time.perf_counter)
    except NoPlanError:
        return math.inf
    if method == "exact":
        assert plan.optimal
        assert plan.lower_bound <= plan.cost
    checked = evaluate(problem, plan.stages, split_stages=demands.split_stages)
    assert not checked.violations
    assert checked.cost == pytest.approx(plan.cost, rel=1e-12)
    return plan.cost


def with_binding_limits(problem: Problem, shares: list[float]) -> Problem | None:
    """Return the problem with fewer units of every type than its cheapest plan uses, so that limits must bind."""
    arrays = as_arrays(problem)
    _, path = cheapest_of_all(
        arrays, min_samples_per_s=problem.training.min_samples_per_s, max_stages=None, split_stages=False
    )
    if path is None:
        return None
    used = path.used(arrays.num_types)
    if not (used > 1).any():
        return None
    resources = tuple(
        msgspec.structs.replace(resource, limit=max(1, math.ceil(used[t] * share) - 1) if used[t] > 1 else None)
        for t, (resource, share) in enumerate(zip(problem.resources, shares, strict=False))
    )
    return msgspec.structs.replace(problem, resources=resources)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(problem=problems())
def test_without_limits_exact_costs_what_brute_force_costs(problem: Problem) -> None:
    assert cost_by("exact", problem) == pytest.approx(cost_by("brute-force", problem), rel=1e-7)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(problem=problems(), shares=st.lists(st.floats(0.2, 1.0), min_size=4, max_size=4))
def test_with_limits_that_bind_exact_costs_what_brute_force_costs(problem: Problem, shares: list[float]) -> None:
    limited = with_binding_limits(problem, shares)
    assume(limited is not None)
    free_cost, cost = cost_by("exact", problem), cost_by("exact", limited)

    event("impossible" if math.isinf(cost) else "possible")
    assert cost == pytest.approx(cost_by("brute-force", limited), rel=1e-7)
    assert cost > free_cost * (1 - 1e-7)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problem=problems(links=True), shares=st.lists(st.floats(0.2, 1.0), min_size=4, max_size=4))
def test_a_floor_at_the_very_speed_of_the_fastest_plan_is_reached(problem: Problem, shares: list[float]) -> None:
    limited = with_binding_limits(problem, shares)
    assume(limited is not None)
    try:
        fastest = fastest_plan(limited, Demands(max_cost_per_hour=1e9), clock=time.perf_counter)
    except NoPlanError:
        assume(False)
    training = msgspec.structs.replace(limited.training, min_samples_per_s=fastest.samples_per_s * (1 - 1e-12))
    at_the_edge = msgspec.structs.replace(limited, training=training)

    cost = cost_by("exact", at_the_edge)
    assert math.isfinite(cost)
    assert cost == pytest.approx(cost_by("brute-force", at_the_edge), rel=1e-7)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(problem=problems(links=True), shares=st.lists(st.floats(0.2, 1.0), min_size=4, max_size=4), limits=st.booleans())
def test_with_links_exact_costs_what_brute_force_costs(problem: Problem, shares: list[float], limits: bool) -> None:
    if limits:
        limited = with_binding_limits(problem, shares)
        assume(limited is not None)
        problem = limited
    assert cost_by("exact", problem) == pytest.approx(cost_by("brute-force", problem), rel=1e-7)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    problem=problems(),
    shares=st.lists(st.floats(0.4, 1.0), min_size=4, max_size=4),
    limits=st.booleans(),
    max_stages=st.integers(1, 4),
)
def test_with_few_stages_exact_costs_what_brute_force_costs(
    problem: Problem, shares: list[float], limits: bool, max_stages: int
) -> None:
    if limits:
        limited = with_binding_limits(problem, shares)
        assume(limited is not None)
        problem = limited
    shape = {"max_stages": max_stages}
    assert cost_by("exact", problem, **shape) == pytest.approx(cost_by("brute-force", problem, **shape), rel=1e-7)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(), links=st.booleans())
def test_with_split_stages_exact_costs_what_brute_force_costs_and_never_more_than_without(
    problem: Problem, links: bool
) -> None:
    assume(len(problem.layers) <= 6)
    split = cost_by("exact", problem, split_stages=True)

    assert split == pytest.approx(cost_by("brute-force", problem, split_stages=True), rel=1e-7)
    assert split <= cost_by("exact", problem) * (1 + 1e-7)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(4, 4), (5, 3), (6, 3), (7, 2)]),
    floor=FLOORS,
    rooms=st.lists(st.sampled_from([3e7, 1e8, 1e9, None]), min_size=4, max_size=4),
    latencies=st.lists(st.floats(1e-5, 1e-2), min_size=6, max_size=6),
    sites=st.sampled_from([0, 0, 2]),
    max_stages=st.sampled_from([None, None, 2, 3]),
    split_stages=st.booleans(),
)
def test_where_everything_binds_at_once_exact_costs_what_brute_force_costs(
    seed, shape, floor, rooms, latencies, sites, max_stages, split_stages
) -> None:
    problem = synthetic_problem(
        num_layers=shape[0],
        num_types=shape[1],
        seed=seed,
        min_samples_per_s=floor,
        limit_share=0.8,
        link_share=0.5,
        hole_share=0.1,
        num_sites=sites,
    )
    # A link of its own for every pair, so that there are as many classes of cuts as pairs.
    links = tuple(
        msgspec.structs.replace(link, latency_s=each) for link, each in zip(problem.links, latencies, strict=False)
    )
    resources = tuple(
        msgspec.structs.replace(resource, memory_bytes=room)
        for resource, room in zip(problem.resources, rooms, strict=False)
    )
    problem = msgspec.structs.replace(problem, links=links, resources=resources)
    assume(not split_stages or shape[0] < 7)
    demands = {"max_stages": max_stages, "split_stages": split_stages}
    cost = cost_by("exact", problem, **demands)

    event("impossible" if math.isinf(cost) else "possible")
    assert cost == pytest.approx(cost_by("brute-force", problem, **demands), rel=1e-7)


@st.composite
def extreme_problems(draw: st.DrawFn) -> Problem:
    """Draw prices and times over many orders of magnitude, work that is perfectly parallel, serial or none at all."""
    number = st.floats(-6, 2).map(lambda exponent: 10.0**exponent)
    fractions = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.999])
    seconds = st.one_of(st.just(0.0), number)
    names = [f"t{t}" for t in range(draw(st.integers(1, 3)))]
    time_on = st.builds(
        LayerTime, compute_s=seconds, comm_s=seconds, compute_parallel=fractions, comm_parallel=fractions
    )
    layers = tuple(
        Layer(name=str(position), on={name: draw(time_on) for name in names})
        for position in range(draw(st.integers(1, 5)))
    )
    resources = tuple(
        ResourceType(name=name, price_per_hour=draw(number), limit=draw(st.sampled_from([None, None, 3, 40])))
        for name in names
    )
    training = Training(
        samples=10**9,
        batch=draw(st.sampled_from([1, 1000, 65536])),
        min_samples_per_s=draw(st.sampled_from([0.0, 10.0, 1e5])),
    )
    return Problem(training=training, resources=resources, layers=layers)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problem=extreme_problems())
def test_on_extreme_problems_without_limits_exact_is_proven_and_costs_what_brute_force_costs(problem: Problem) -> None:
    timeless = all(any(time.compute_s == time.comm_s == 0 for time in layer.on.values()) for layer in problem.layers)
    assume(not timeless)

    # Where the infimum is reached by no plan, each method may stop anywhere within the tolerance.
    assert cost_by("exact", problem) == pytest.approx(cost_by("brute-force", problem), rel=2e-6)
