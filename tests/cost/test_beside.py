"""What runs beside the layers, priced by hand: every number is worked out in the comments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.cost import PlanEvaluation, evaluate, evaluate_plan
from dovetail.errors import PlanError
from dovetail.spec import Beside, Part, Plan, Problem, SharedMachine, Stage, Whole
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages

BESIDE = Beside(
    read_core_s=0.6,
    host_cores={"gpu": 2},
    step_s=0.05,
    server_core_s=0.8,
    client_s={"cpu": 0.4, "gpu": 0.1},
)
"""Of a batch: 0.6 s of a core to read, 0.8 s of a server, 0.4 s of a core or 0.1 s of a gpu for rows on servers."""
MACHINE = SharedMachine(name="here", cores=16, units={"gpu": 2})


def problem(beside: Beside | None = BESIDE, machine: SharedMachine | None = MACHINE, **training: Any) -> Problem:
    """Rows take 1 s on a core and 0.3 s on a gpu, the tower 2 s and 0.2 s; a core costs 1 $/h and a gpu 10."""
    layers = [
        make_layer(
            "rows",
            kind="embedding",
            weight_bytes=1000.0,
            output_bytes=40.0,
            on={"cpu": make_layer_time(1.0), "gpu": make_layer_time(0.3)},
        ),
        make_layer("tower", on={"cpu": make_layer_time(2.0), "gpu": make_layer_time(0.2)}),
    ]
    resources = [make_resource("cpu", kind="cpu"), make_resource("gpu", 10.0, kind="gpu")]
    made = make_problem(layers=layers, resources=resources, samples=3600, batch=8, **training)
    return msgspec.structs.replace(made, beside=beside, machines=() if machine is None else (machine,))


def beside(**keys: Any) -> Beside:
    return msgspec.structs.replace(BESIDE, **keys)


def priced(stages: tuple[Stage, ...], of: Problem | None = None, **keys: Any) -> PlanEvaluation:
    return evaluate(problem() if of is None else of, stages, **keys)


def batch_s(found: PlanEvaluation) -> float:
    return 8 / found.samples_per_s


ON_GPU, ON_CPU = make_stages(("gpu", 0, 1, 1)), make_stages(("cpu", 0, 1, 4))
TWO = make_stages(("cpu", 0, 0, 4), ("gpu", 1, 1, 1))


def test_one_process_computes_while_it_is_read_for() -> None:
    # 0.3 + 0.2 s on the gpu; one core reads in 0.6 s, two in 0.3 s.
    assert batch_s(priced(ON_GPU, place="local", readers=1)) == pytest.approx(0.6)
    assert batch_s(priced(ON_GPU, place="local", readers=2)) == pytest.approx(0.5)


def test_one_process_on_cores_shares_its_layers_among_threads() -> None:
    assert batch_s(priced(ON_CPU, place="local", readers=1)) == pytest.approx((1.0 + 2.0) / 4)


def test_all_cores_are_counted_and_paid_for_as_units_of_the_cheapest_cpu_type() -> None:
    # A gpu at 10 $/h, two cores that feed it and three that read at 1 $/h each.
    found = priced(ON_GPU, place="local", readers=3)
    assert (found.cores, found.cost_per_hour) == (5, pytest.approx(15.0))
    # Four cores and a gpu in stages, two that feed it, two servers, one reader.
    found = priced(TWO, place="servers", servers=2, readers=1)
    assert (found.cores, found.cost_per_hour) == (9, pytest.approx(19.0))


def test_with_rows_on_servers_their_clients_take_the_place_of_the_embedding() -> None:
    # Stage 0: 0.4 / 4 s of clients; stage 1: 0.2 s; servers: 0.8 / 4 s; reading 0.6 / 2 s; and 0.05 s a step.
    found = priced(TWO, place="servers", servers=4, readers=2)
    assert found.stage_seconds == pytest.approx((0.1, 0.2))
    assert batch_s(found) == pytest.approx(0.05 + 0.3)
    # With three readers nothing is slower than servers and stage 1.
    assert batch_s(priced(TWO, place="servers", servers=4, readers=3)) == pytest.approx(0.05 + 0.2)


def test_several_embeddings_share_what_a_client_takes_by_what_they_put_out() -> None:
    made = problem()
    second = msgspec.structs.replace(made.layers[0], name="more", output_bytes=120.0)
    made = msgspec.structs.replace(made, layers=(made.layers[0], second, made.layers[1]))
    stages = make_stages(("cpu", 0, 0, 1), ("gpu", 1, 2, 1))

    # A quarter of 0.4 s on the core; three quarters of 0.1 s, and the tower's 0.2 s, on the gpu.
    assert priced(stages, made, place="servers", servers=8, readers=8).stage_seconds == pytest.approx((0.1, 0.275))


def test_a_step_over_stages_is_filled_and_drained() -> None:
    # Batches of 8 in micro-batches of 1: each of 4 workers has 2, so there are N = 8 in all.
    # Stage 0: 4 units in 0.1 s spend 0.05 s on one; stage 1: 0.2 s, so 0.025 s; 2 servers: 0.4 s, so 0.1 s.
    # All of the servers' work, and one micro-batch through both stages: 0.4 + 0.05 + 0.025.
    found = priced(TWO, problem(beside(micro_batch=1)), place="servers", servers=2, readers=3)
    assert batch_s(found) == pytest.approx(0.05 + 0.475)
    # Workers of 3: parts of 8 / 3 samples in pieces of up to 2 are two each, so N = 6.
    stages = make_stages(("cpu", 0, 0, 3), ("gpu", 1, 1, 1))
    found = priced(stages, problem(beside(micro_batch=2)), place="servers", servers=2, readers=3)
    passing = [3 * (0.4 / 3) / 6, 0.2 / 6]
    assert batch_s(found) == pytest.approx(0.05 + 0.4 + sum(passing))


def test_several_workers_share_a_part_of_what_one_spends_on_rows() -> None:
    # 0.4 s of one core, half of it shared by four: 0.2 + 0.05; the tower takes 2 / 4.
    shared = problem(beside(client_parallel={"cpu": 0.5}))
    found = priced(ON_CPU, shared, place="servers", servers=1, readers=1)

    assert found.stage_seconds == pytest.approx((0.75,))
    assert {part.part: part.seconds_per_batch for part in found.parts}["rows"] == pytest.approx(0.25)


def test_those_who_take_more_cores_than_there_are_take_turns() -> None:
    # Four workers of (0.4 + 2) / 4, a server of 0.8 and a reader of 0.6 s are 3.8 s of cores: on two, 1.9 s.
    small = problem(machine=SharedMachine(name="here", cores=2))
    found = priced(ON_CPU, small, place="servers", servers=1, readers=1)

    assert batch_s(found) == pytest.approx(0.05 + 1.9)
    assert found.violations == ("6 cores are more than the 2 of all machines",)
    # One process: four threads that share 3 s, and a reader, are 3.6 s of two cores.
    assert batch_s(priced(ON_CPU, small, place="local", readers=1)) == pytest.approx(1.8)


def test_rows_are_only_where_the_problem_allows_them() -> None:
    only = problem(beside(places=("servers",)))

    with pytest.raises(PlanError, match='place = "local", and rows may be: servers'):
        priced(ON_CPU, only, place="local", readers=1)
    assert batch_s(priced(ON_CPU, only, place="servers", servers=1, readers=1)) > 0


def test_what_was_measured_as_a_whole_goes_before_the_formulas() -> None:
    whole = Whole(place="local", resource="gpu", units=1, cores=4, seconds_per_batch=0.9)
    sharded = Whole(place="sharded", resource="gpu", units=2, cores=6, seconds_per_batch=0.4)
    made = problem(beside(wholes=(whole, sharded)))
    found = priced(ON_GPU, made, place="local", readers=2)
    assert (batch_s(found), found.cores, found.cost_per_hour) == (pytest.approx(0.9), 4, pytest.approx(14.0))
    assert found.parts == (Part(part="whole", seconds_per_batch=0.9, cores=4),)
    found = priced(make_stages(("gpu", 0, 1, 2)), made, place="sharded")
    assert (batch_s(found), found.cost_per_hour) == (pytest.approx(0.4), pytest.approx(26.0))


def test_the_parts_of_a_plan_add_up_to_its_batch() -> None:
    found = priced(TWO, problem(beside(micro_batch=1)), place="servers", servers=2, readers=3)
    parts = {part.part: (part.seconds_per_batch, part.cores) for part in found.parts}

    assert parts == {
        "read": (pytest.approx(0.2), 3),
        "servers": (pytest.approx(0.4), 2),
        "rows": (pytest.approx(0.1), 0),
        "stage 0": (pytest.approx(0.1), 4),
        "stage 1": (pytest.approx(0.2), 2),
        "step": (pytest.approx(0.05 + 0.075), 0),
    }
    slowest = max(seconds for part, (seconds, _) in parts.items() if part != "step")
    assert slowest + parts["step"][0] == pytest.approx(batch_s(found))


def test_without_a_place_stages_are_priced_alone_as_they_always_were() -> None:
    bare = problem(beside=None, machine=None)
    assert evaluate(problem(), TWO).cost == evaluate(bare, TWO).cost
    assert evaluate(bare, TWO, place="servers", servers=2, readers=1) == evaluate(bare, TWO)
    plan = Plan(
        method="by hand", stages=TWO, samples_per_s=1, cost_per_hour=1, cost=1, lower_bound=0, optimal=False,
        seconds=0, place="servers", servers=2, readers=1,
    )  # fmt: skip
    assert evaluate_plan(problem(), plan) == priced(TWO, place="servers", servers=2, readers=1)


@pytest.mark.parametrize(
    ("machine", "stages", "beside_them", "missed"),
    [
        (MACHINE, TWO, {"servers": 4, "readers": 6}, None),
        (MACHINE, TWO, {"servers": 5, "readers": 6}, "17 cores are more than the 16 of all machines"),
        (MACHINE, make_stages(("gpu", 0, 1, 3)), {"servers": 1, "readers": 1}, "3 units of `gpu` are more than"),
        (SharedMachine(name="one", cores=3, units={"gpu": 2}), make_stages(("gpu", 0, 1, 2)),
         {"servers": 1, "readers": 1},
         "2 units of `gpu` are more than machines have and feed: 1"),
        (SharedMachine(name="small", cores=16, memory_bytes=900.0, units={"gpu": 2}), TWO, {"servers": 1, "readers": 1},
         "rows of 1 kB are more than machines have room for: 900 B"),
        (SharedMachine(name="small", cores=4, memory_bytes=500.0, count=4, units={"gpu": 2}), TWO,
         {"servers": 1, "readers": 1}, None),
    ],
)  # fmt: skip
def test_machines_have_room_for_everybody_or_the_plan_says_what_is_missing(
    machine: SharedMachine, stages: tuple[Stage, ...], beside_them: dict[str, int], missed: str | None
) -> None:
    found = priced(stages, problem(machine=machine), place="servers", **beside_them)
    assert bool(found.violations) == (missed is not None)
    assert missed is None or any(missed in each for each in found.violations)


def test_one_process_has_to_fit_one_machine() -> None:
    two = SharedMachine(name="twin", cores=4, count=2, units={"gpu": 1})
    assert not priced(ON_GPU, problem(machine=two), place="local", readers=2).violations
    missed = priced(ON_GPU, problem(machine=two), place="local", readers=3).violations
    assert missed == ("one process takes 5 cores, and machine `twin` has 4",)


def test_cores_beside_stages_count_against_the_limit_of_their_type() -> None:
    made = problem(machine=None)
    limited = tuple(msgspec.structs.replace(each, limit=6) for each in made.resources)
    made = msgspec.structs.replace(made, resources=limited)

    assert not priced(ON_CPU, made, place="local", readers=2).violations
    assert priced(ON_CPU, made, place="local", readers=3).violations == (
        "7 units of `cpu` are more than its limit of 6",
    )


@pytest.mark.parametrize(
    ("stages", "keys", "message"),
    [
        (TWO, {"place": "local", "readers": 1}, "2 stages with place"),
        (make_stages(("gpu", 0, 1, 2)), {"place": "local", "readers": 1}, "2 units of `gpu` in one process"),
        (ON_GPU, {"place": "local", "readers": 0}, "readers is 0, and reading a batch takes 0.6 s"),
        (ON_GPU, {"place": "local", "readers": 1, "servers": 2}, "servers is 2"),
        (TWO, {"place": "servers", "readers": 1}, "servers is 0"),
        (ON_GPU, {"place": "sharded"}, "was not measured"),
    ],
)
def test_a_place_that_stages_cannot_have_is_refused(stages: tuple[Stage, ...], keys: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        priced(stages, **keys)
    assert caught.value.hint


def test_rows_on_servers_are_refused_where_nobody_knows_what_they_take() -> None:
    with pytest.raises(PlanError, match="does not say what those take"):
        priced(TWO, problem(beside(server_core_s=None, client_s={})), place="servers", servers=1, readers=1)
    with pytest.raises(PlanError, match="what workers on `gpu` take for them is not known"):
        priced(ON_GPU, problem(beside(client_s={"cpu": 0.4})), place="servers", servers=1, readers=1)
