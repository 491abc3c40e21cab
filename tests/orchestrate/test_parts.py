"""What a planned run took part by part, and the problem that learns from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dovetail.cost import evaluate
from dovetail.orchestrate.choosing import planned_for
from dovetail.orchestrate.parts import MeasuredParts, corrected, part_table
from dovetail.orchestrate.pipeline import compared
from dovetail.orchestrate.profiling import profiled_here
from dovetail.orchestrate.replanning import train_planned
from dovetail.orchestrate.run_files import model_run
from dovetail.planner.demands import Demands
from dovetail.runtime.folder import MEASURED_PROBLEM, RunSummary
from dovetail.runtime.launch.start import start
from dovetail.runtime.planned.from_plan import Machine, placed
from dovetail.spec import Beside, Compared, Part, Plan, Problem, SharedMachine, Whole, read_problem
from dovetail.spec.run import Run, RunModel
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages

HERE = Machine(cores=8, gpus=0)
BATCH = 100
BESIDE = Beside(read_core_s=0.1, step_s=0.3, server_core_s=0.2, client_s={"cpu": 0.4})


def make_known(beside: Beside = BESIDE) -> Problem:
    """Return a problem of an embedding and a layer, on cores of one machine."""
    rows = make_layer("rows", {"cpu": make_layer_time(5.0)}, kind="embedding", output_bytes=1.0)
    rest = make_layer("rest", {"cpu": make_layer_time(0.8)})
    bare = make_problem(layers=[rows, rest], resources=[make_resource("cpu", kind="cpu")], batch=BATCH)
    return msgspec.structs.replace(bare, beside=beside, machines=(SharedMachine(name="here", cores=8),))


def make_planned(problem: Problem, units: int, **keys):
    """Return how a plan of one stage on cores runs here, priced by the cost model."""
    stages = make_stages(("cpu", 0, 1, units))
    found = evaluate(problem, stages, **keys)
    plan = Plan(
        method="exact", stages=stages, samples_per_s=found.samples_per_s, cost_per_hour=1.0, cost=1.0, lower_bound=1.0,
        optimal=True, seconds=0.0, batch=BATCH, cores=found.cores, parts=found.parts, **keys,
    )  # fmt: skip
    return placed(Run(model=RunModel(name="ctr-dnn")), plan, problem, HERE)


def seconds_of(problem: Problem, units: int, **keys) -> float:
    return BATCH / evaluate(problem, make_stages(("cpu", 0, 1, units)), **keys).samples_per_s


def test_a_layout_that_ran_is_known_as_a_whole_and_others_keep_what_was_known_of_them():
    other = Whole(place="local", resource="cpu", units=2, cores=2, seconds_per_batch=1.5)
    wrong = Whole(place="local", resource="cpu", units=4, cores=5, seconds_per_batch=0.001)
    problem = make_known(msgspec.structs.replace(BESIDE, wholes=(other, wrong)))
    planned = make_planned(problem, 4, place="local")

    found = corrected(problem, planned, MeasuredParts(stages=(1.9,), read_core_s=0.15, whole_s=2.0, error=0.1))

    assert found.beside is not None
    assert found.beside.wholes == (other, msgspec.structs.replace(wrong, seconds_per_batch=2.0, error=0.1))
    assert found.beside.read_core_s == 0.15
    assert found.layers == problem.layers


def test_parts_of_a_run_over_servers_become_what_they_were():
    problem = make_known()
    planned = make_planned(problem, 2, place="servers", servers=1, readers=1)
    measured = MeasuredParts(stages=(1.2,), read_core_s=0.25, server_core_s=0.5, whole_s=2.0, servers=1)

    found = corrected(problem, planned, measured)
    assert found.beside is not None
    no_wholes = msgspec.structs.replace(found, beside=msgspec.structs.replace(found.beside, wholes=()))

    assert found.beside.client_s["cpu"] == pytest.approx(0.4 * 2)  # 1.2 was 0.6 before: 0.4 and 0.8, shared by two
    assert [layer.on["cpu"].compute_s for layer in found.layers] == pytest.approx([5.0, 1.6])
    assert (found.beside.read_core_s, found.beside.server_core_s) == (0.25, 0.5)
    assert found.beside.step_s == pytest.approx(0.8)  # what is left of 2.0 beside 1.2
    assert seconds_of(no_wholes, 2, place="servers", servers=1, readers=1) == pytest.approx(2.0)
    assert seconds_of(found, 2, place="servers", servers=1, readers=1) == pytest.approx(2.0)
    assert [(whole.units, whole.servers) for whole in found.beside.wholes] == [(2, 1)]


def test_what_was_not_measured_stays_as_it_was():
    problem = make_known()
    planned = make_planned(problem, 2, place="servers", servers=1, readers=1)

    assert corrected(problem, planned, MeasuredParts(stages=(None,))) == problem


def test_a_problem_without_what_runs_beside_gets_its_layers_scaled():
    problem = make_known().as_in_paper()
    planned = make_planned(problem, 1)

    found = corrected(problem, planned, MeasuredParts(stages=(11.6,), whole_s=20.0))

    assert [layer.on["cpu"].compute_s for layer in found.layers] == pytest.approx([10.0, 1.6])
    assert found.beside is None


def test_every_part_stands_beside_what_was_predicted_of_it_and_the_whole_comes_last():
    problem = make_known()
    planned = make_planned(problem, 2, place="servers", servers=1, readers=1)
    measured = MeasuredParts(stages=(1.2,), read_core_s=0.25, server_core_s=0.5, whole_s=2.0, servers=1)

    rows = part_table(planned, measured)

    assert [row["part"] for row in rows] == ["read", "servers", "rows", "stage 0", "step", "whole"]
    predicted = {row["part"]: row["predicted_seconds_per_batch"] for row in rows}
    seen = {row["part"]: row["measured_seconds_per_batch"] for row in rows}
    assert predicted == pytest.approx(
        {"read": 0.1, "servers": 0.2, "rows": 0.2, "stage 0": 0.6, "step": 0.3, "whole": 0.9}
    )
    assert seen == {"read": 0.25, "servers": 0.5, "rows": None, "stage 0": 1.2, "step": 0.8, "whole": 2.0}


def test_a_layout_that_was_measured_whole_has_its_parts_by_the_formulas():
    whole = Whole(place="local", resource="cpu", units=4, cores=5, seconds_per_batch=3.0)
    problem = make_known(msgspec.structs.replace(BESIDE, wholes=(whole,)))
    planned = make_planned(problem, 4, place="local")

    rows = part_table(planned, MeasuredParts(stages=(2.0,), read_core_s=0.3, whole_s=2.5, readers=3))

    predicted = {row["part"]: row["predicted_seconds_per_batch"] for row in rows}
    assert predicted == {"read": pytest.approx(0.1 / 3), "stage 0": pytest.approx(5.8 / 4), "whole": 3.0}
    assert rows[0]["measured_seconds_per_batch"] == pytest.approx(0.1)


def test_plain_layouts_are_set_beside_the_chosen_one():
    plan = make_planned(make_known(), 2, place="servers", servers=1, readers=1).plan
    slower = Compared(layout="one process on gpu", samples_per_s=plan.samples_per_s / 2, cost_per_hour=0.5, cost=1.0)

    (found,) = compared(msgspec.structs.replace(plan, compared=(slower,)))

    assert (found["layout"], found["speed"], found["price"]) == ("one process on gpu", 0.5, 0.5)


@pytest.mark.processes
def test_a_run_shows_that_a_plan_was_wrong_and_the_next_one_is_right(tmp_path: Path):
    run = model_run(
        "ctr-dnn",
        model_options={"hidden": [8, 4], "width": 4, "num_rows": 26_000},
        data="clicks",
        data_options={},
        samples=6_000,
        batch=500,
        seed=0,
    )
    machine = Machine(cores=2, gpus=0)
    bare = profiled_here(run, machine, short_runs_s=0.0)
    wholes = (
        Whole(place="local", resource="cpu", units=2, cores=2, seconds_per_batch=1e-9),  # nothing is as fast
        Whole(place="local", resource="cpu", units=1, cores=1, seconds_per_batch=1e-6),  # less than anybody will see
    )
    beside = Beside(read_core_s=1.0, wholes=wholes)
    problem = msgspec.structs.replace(bare, beside=beside, machines=(SharedMachine(name="here", cores=2),))
    folder = tmp_path / "run"
    first = planned_for(problem, Demands())

    found = train_planned(
        placed(run, first, problem, machine), folder, lambda run, resumed, _: start(run, folder, resumed=resumed)
    )
    again = read_problem(folder / MEASURED_PROBLEM)
    second = planned_for(again, Demands())

    assert (first.place, first.stages[0].units) == ("local", 2)
    assert found.result.is_complete
    summary = RunSummary.read(folder)
    assert summary.workers["worker"].read_s > 0
    assert again.beside is not None
    assert next(whole for whole in again.beside.wholes if whole.units == 2).seconds_per_batch > 1e-5
    assert (second.place, second.stages[0].units) == ("local", 1)
    assert second.parts == (Part(part="whole", seconds_per_batch=1e-6, cores=1),)
