"""Plans on machines: what was compared, other methods, problems without room, and how soon there is an answer."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec
import pytest

from dovetail.cost import evaluate_plan
from dovetail.errors import NoPlanError, PlanError
from dovetail.planner.demands import Demands
from dovetail.planner.methods import Options, plan_with
from dovetail.planner.plan import cheapest_plan, fastest_plan, pareto_plans
from dovetail.planner.replan import better_plan
from dovetail.spec import Beside, Plan, Problem, SharedMachine, Whole
from tests.makers import make_layer, make_layer_time, make_problem, make_resource

BESIDE = Beside(
    read_core_s=0.2,
    host_cores={"gpu": 1},
    micro_batch=16,
    step_s=0.01,
    server_core_s=0.4,
    client_s={"cpu": 0.2, "gpu": 0.1},
)

PATIENT = {"time_limit_s": 600.0}
"""On a busy machine kernels may take long to compile, and planning to begin."""


def problem(*, floor: float = 0.0, beside: Beside | None = BESIDE, rows: float = 1e9, **machine: Any) -> Problem:
    layers = [
        make_layer(
            "rows",
            kind="embedding",
            weight_bytes=rows,
            output_bytes=4e4,
            on={"cpu": make_layer_time(1.0, 0.1), "gpu": make_layer_time(0.02, 0.05)},
        ),
        make_layer("tower", on={"cpu": make_layer_time(4.0), "gpu": make_layer_time(0.1)}),
    ]
    resources = [make_resource("cpu", 0.05, kind="cpu"), make_resource("gpu", 2.0, kind="gpu")]
    made = make_problem(layers=layers, resources=resources, samples=100_000, batch=64, min_samples_per_s=floor)
    machines = (SharedMachine(**{"name": "here", "cores": 16, "units": {"gpu": 1}, **machine}),)
    return msgspec.structs.replace(made, beside=beside, machines=machines)


def cheapest(of: Problem, **demands: Any) -> Plan:
    return cheapest_plan(of, Demands(**PATIENT | demands), clock=time.perf_counter)


def fastest(of: Problem, **demands: Any) -> Plan:
    return fastest_plan(of, Demands(**PATIENT | demands), clock=time.perf_counter)


def test_plain_layouts_are_compared_and_the_plan_beats_them() -> None:
    plan = fastest(problem())
    compared = {each.layout: each for each in plan.compared}

    assert list(compared) == [
        "one process on cpu",
        "one process on gpu",
        "plain data parallel on cpu",
        "plain data parallel on gpu",
    ]
    assert plan.samples_per_s >= max(each.samples_per_s for each in plan.compared) * (1 - 1e-9)
    # 0.12 s on the gpu while two cores read in 0.1 s.
    assert compared["one process on gpu"].samples_per_s == pytest.approx(64 / 0.12)
    assert compared["one process on gpu"].cost_per_hour == pytest.approx(2.0 + 3 * 0.05)


def test_the_plan_says_place_servers_readers_cores_and_parts() -> None:
    plan = fastest(problem())
    assert (plan.place, plan.servers, plan.readers, plan.cores) == ("local", None, 2, 3)
    assert [part.part for part in plan.parts] == ["read", "stage 0"]
    plan = fastest(problem(units={"gpu": 4}))
    assert plan.place == "servers"
    assert plan.servers is not None
    assert plan.cores == sum(part.cores for part in plan.parts) <= 16
    assert evaluate_plan(problem(units={"gpu": 4}), plan).samples_per_s == pytest.approx(plan.samples_per_s)


def test_a_measured_layout_is_chosen_where_it_is_faster_and_not_where_it_is_slower() -> None:
    def with_whole(seconds: float) -> Problem:
        whole = Whole(place="sharded", resource="cpu", units=8, cores=10, seconds_per_batch=seconds)
        return problem(beside=msgspec.structs.replace(BESIDE, wholes=(whole,)))

    quick, slow = fastest(with_whole(0.05)), fastest(with_whole(0.5))
    assert (quick.place, quick.readers, quick.cores) == ("sharded", None, 10)
    assert quick.samples_per_s == pytest.approx(64 / 0.05)
    assert slow.place == "local"


@pytest.mark.parametrize("method", ["greedy", "heuristic", "cpu", "gpu", "genetic", "brute-force"])
def test_other_methods_choose_layers_and_what_runs_beside_them_is_the_cheapest(method: str) -> None:
    made = problem(floor=100.0)
    plan = plan_with(method, made, Demands(**PATIENT), clock=time.perf_counter, options=Options(seed=1))
    exact = cheapest(made)

    assert plan.place is not None
    assert not evaluate_plan(made, plan).violations
    assert plan.cost >= exact.cost * (1 - 1e-9)
    assert plan.lower_bound == pytest.approx(exact.lower_bound, rel=1e-6)
    if method == "brute-force":
        assert plan.cost == pytest.approx(exact.cost, rel=1e-9)


def test_brute_force_on_machines_refuses_too_many_choices() -> None:
    made = problem()
    layers = tuple(msgspec.structs.replace(made.layers[1], name=f"layer{n}") for n in range(15))
    with pytest.raises(PlanError, match="32,768 choices of types"):
        plan_with(
            "brute-force", msgspec.structs.replace(made, layers=layers), Demands(**PATIENT), clock=time.perf_counter
        )


def test_the_curve_of_cost_against_speed_has_layouts_of_several_kinds() -> None:
    plans = pareto_plans(problem(units={"gpu": 4}), Demands(**PATIENT), points=8, clock=time.perf_counter)

    assert {plan.place for plan in plans} == {"local", "servers"}
    assert all(one.cost < other.cost for one, other in itertools.pairwise(plans))


@pytest.mark.parametrize(
    ("made", "message", "hint"),
    [
        (problem(floor=600.0), "the fastest reaches 533.333", "`cores` of machine `here` from 16 to"),
        (problem(cores=1), "one process on `gpu`: one process takes 2 cores, and machine `here` has 1", "from 1 to 2"),
        (problem(rows=5e9, memory_bytes=1e9, units={"gpu": 0}),
         "rows of 5 GB are more than machines have room for: 1 GB", "rows alone take 5 GB"),
    ],
)  # fmt: skip
def test_where_nothing_fits_the_error_says_what_is_missing_with_the_values(
    made: Problem, message: str, hint: str
) -> None:
    with pytest.raises(NoPlanError) as caught:
        cheapest(made)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_rows_that_may_only_be_where_nothing_was_measured_fit_nowhere_and_that_is_said() -> None:
    with pytest.raises(NoPlanError, match="no layout fits") as caught:
        cheapest(problem(beside=msgspec.structs.replace(BESIDE, places=("sharded",))))
    assert "allow more `places` of rows than sharded" in caught.value.hint


def test_what_the_error_says_would_do_does() -> None:
    with pytest.raises(NoPlanError) as caught:
        cheapest(problem(floor=600.0))
    cores = int(caught.value.hint.split("from 16 to ")[1].split()[0])

    assert cheapest(problem(floor=600.0, cores=cores)).samples_per_s >= 600.0
    with pytest.raises(NoPlanError):
        cheapest(problem(floor=600.0, cores=cores - 1))


def test_machines_alone_bound_cores_though_nothing_runs_beside() -> None:
    plan = fastest(problem(beside=None, units={"gpu": 0}))

    assert plan.place is None
    assert plan.compared == ()
    assert (plan.cores, [stage.units for stage in plan.stages]) == (16, [16])


def test_as_in_the_paper_machines_and_what_runs_beside_are_left_out() -> None:
    made = problem()
    bare = msgspec.structs.replace(made, machines=(), beside=None)
    plan, other = cheapest(made.as_in_paper()), cheapest(bare)

    assert msgspec.structs.replace(plan, seconds=0.0) == msgspec.structs.replace(other, seconds=0.0)
    assert set(msgspec.to_builtins(plan)) & {"place", "servers", "readers", "cores", "parts", "compared"} == set()


def test_a_move_to_another_plan_changes_stages_and_not_what_runs_beside_them() -> None:
    made = problem()
    slow = msgspec.structs.replace(cheapest(made).stages[0], resource="cpu", units=2, row_budgets=None)
    move = better_plan(made, [slow], clock=time.perf_counter)

    assert move is None or (move.plan.place is None and move.plan.problem == made.digest())
