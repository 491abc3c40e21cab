"""Plans fit into memory, or there is none."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost import evaluate
from dovetail.errors import NoPlanError
from dovetail.planner.demands import Demands
from dovetail.planner.methods import METHODS, Options, plan_with
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Training
from dovetail.spec.synthetic import synthetic_problem


def with_memory(problem: Problem, rooms: list[float]) -> Problem:
    """Return the problem with so much memory a unit of each type."""
    resources = tuple(
        msgspec.structs.replace(resource, memory_bytes=room)
        for resource, room in zip(problem.resources, rooms, strict=False)
    )
    return msgspec.structs.replace(problem, resources=resources)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rooms=st.lists(st.sampled_from([1e5, 1e6, 1e7, 3e7, 1e8, 1e9]), min_size=3, max_size=3),
    links=st.booleans(),
    limits=st.sampled_from([0.0, 0.7]),
    floor=st.sampled_from([0.0, 2e4, 1e5]),
)
def test_with_little_memory_exact_costs_what_brute_force_costs(
    seed: int, rooms: list[float], links: bool, limits: float, floor: float
) -> None:
    problem = synthetic_problem(
        num_layers=5,
        num_types=3,
        seed=seed,
        min_samples_per_s=floor,
        limit_share=limits,
        link_share=1.0 if links else 0.0,
    )
    problem = with_memory(problem, rooms)
    costs = []
    for method in ("exact", "brute-force"):
        try:
            plan = plan_with(method, problem, Demands(), clock=time.perf_counter)
        except NoPlanError:
            costs.append(float("inf"))
        else:
            costs.append(plan.cost)
            assert not evaluate(problem, plan.stages).violations

    assert costs[0] == pytest.approx(costs[1], rel=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_to_memory(method: str) -> None:
    # 1 GB of rows: five units of 250 MB hold them, where speed alone would ask for one.
    on = {
        name: LayerTime(compute_s=0.1, comm_s=0.0, compute_parallel=0.5, comm_parallel=1.0) for name in ("cpu", "gpu")
    }
    problem = Problem(
        training=Training(samples=100, batch=10),
        resources=(
            ResourceType(name="cpu", kind="cpu", price_per_hour=1.0, memory_bytes=250e6),
            ResourceType(name="gpu", kind="gpu", price_per_hour=1.5, memory_bytes=250e6),
        ),
        layers=(
            Layer(name="rows", kind="embedding", on=on, weight_bytes=1e9, output_bytes=1e6),
            Layer(name="fc", kind="fc", on=on, weight_bytes=1e6),
        ),
    )
    plan = plan_with(method, problem, Demands(), clock=time.perf_counter, options=Options(rounds=10))

    assert plan.stages[0].units == 5
    assert not evaluate(problem, plan.stages).violations


def test_what_fits_nowhere_is_answered_with_the_memory_that_would_do() -> None:
    on = {"gpu": LayerTime(compute_s=0.1, comm_s=0.0, compute_parallel=0.5, comm_parallel=1.0)}
    problem = Problem(
        training=Training(samples=100, batch=10),
        resources=(ResourceType(name="gpu", price_per_hour=1.5, memory_bytes=1.5e9),),
        layers=(Layer(name="fc", kind="fc", on=on, weight_bytes=1e9),),
    )
    # Weights and their gradients: 2 GB on every unit, however many there are.
    with pytest.raises(NoPlanError) as caught:
        plan_with("exact", problem, Demands(), clock=time.perf_counter)

    assert "rent `gpu` with at least 2 GB a unit instead of 1.5 GB" in caught.value.hint
