"""`dovetail train --plan` and `dovetail run`: what is planned is what is run."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.catalogue import load_catalogue
from dovetail.cli.main import app
from dovetail.cli.run_file import says_dense
from dovetail.cli.tables import show_places
from dovetail.errors import PlanError
from dovetail.orchestrate.measured import rows_found
from dovetail.runtime.folder import RunSummary, TableSummary
from dovetail.runtime.planned.from_plan import (
    Machine,
    check_memory,
    in_sync,
    place,
    placed,
    planned_run,
    predict,
    problem_of,
    run_as_planned,
    with_plan_of,
)
from dovetail.runtime.planned.units import PlanUnit, units_of
from dovetail.spec import Plan, read_problem, write_problem
from dovetail.spec.plan import Stage
from dovetail.spec.run import Run, RunModel, with_settings
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages

SMALL = ["--set", "model.options.hidden=[8]", "--set", "model.options.width=4", "--set", "model.options.num_rows=26000"]

LAYERS = ["--short-runs-s", "0"]


def make_plan(*stages: tuple[str, int, int, int]) -> Plan:
    return Plan(
        method="exact",
        stages=tuple(Stage(resource=r, first_layer=f, last_layer=last, units=u) for r, f, last, u in stages),
        samples_per_s=1000.0, cost_per_hour=1.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=500,
    )  # fmt: skip


def test_units_are_cores_and_gpus_and_a_plan_that_does_not_fit_is_refused():
    plan = make_plan(("cpu", 0, 1, 6), ("v100", 2, 5, 2), ("cpu-core", 6, 9, 2))

    with pytest.raises(PlanError, match="needs 8 cores and 2 GPUs, and this machine has 4"):
        place(plan.stages, Machine(cores=4, gpus=2))
    with pytest.raises(PlanError, match="and this machine has 8 cores and 1 GPUs"):
        place(plan.stages, Machine(cores=8, gpus=1))
    with pytest.raises(PlanError, match="0 GPUs that PyTorch can use"):
        place(plan.stages, Machine(cores=8, gpus=0), scale=True)

    assert [stage.units for stage in place(plan.stages, Machine(cores=4, gpus=1), scale=True)] == [3, 1, 1]


def test_every_unit_is_a_worker_of_its_stage():
    plan = make_plan(("cpu", 0, 1, 3), ("v100", 2, 9, 2))

    machine = Machine(cores=3, gpus=2)

    run = planned_run(Run(model=RunModel(name="ctr-dnn")), place(plan.stages, machine), machine, plan.batch)

    assert [name for name, _ in run.workers_of(0)] == ["stage-0-cpu-0", "stage-0-cpu-1", "stage-0-cpu-2"]
    assert [(name, worker.device) for name, worker in run.workers_of(1)] == [
        ("stage-1-gpu-0", "cuda:0"),
        ("stage-1-gpu-1", "cuda:1"),
    ]
    assert run.training.batch == 500
    assert run.training.dense == "ring"


def test_dense_parameters_stay_where_someone_put_them():
    plan, machine = make_plan(("cpu", 0, 1, 1), ("cpu", 2, 9, 1)), Machine(cores=2, gpus=0)
    stages = place(plan.stages, machine)
    run = Run(model=RunModel(name="ctr-dnn"))
    asynchronous = with_settings(run, {"training.mode": "async"}, place="test")

    assert planned_run(run, stages, machine, 500, dense="ps").training.dense == "ps"
    assert planned_run(asynchronous, stages, machine, 500).training.dense == "ps"
    assert planned_run(run, place(make_plan(("cpu", 0, 9, 2)).stages, machine), machine, 500).training.dense == "ps"


def test_a_run_file_that_says_where_dense_parameters_are_is_heard(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[model]\nname = "ctr-dnn"\n[training]\ndense = "ps"\n')
    other = tmp_path / "other.toml"
    other.write_text('[model]\nname = "ctr-dnn"\n')

    assert says_dense(str(file), {})
    assert not says_dense(str(other), {})
    assert says_dense(str(other), {"training.dense": "ps"})
    assert not says_dense("ctr-dnn", {})
    assert says_dense(None, {})  # what goes on, goes on as it was


def test_a_run_names_the_plan_whose_stages_it_has(tmp_path):
    plan = make_plan(("cpu", 0, 1, 1), ("cpu", 2, 5, 1))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    run = with_settings(Run(model=RunModel(name="ctr-dnn")), {"training.plan": "plan.json"}, place="here")

    planned = with_plan_of(run, tmp_path)

    assert [(stage.first_layer, stage.last_layer) for stage in planned.stages] == [(0, 1), (2, 5)]
    assert planned.training.plan is None
    assert with_plan_of(planned, tmp_path) is planned


def test_what_a_type_is_comes_from_the_plan_the_problem_or_the_catalogue_before_its_name():
    names = ("aws:c7i.4xlarge", "c7g.large", "aws:c7i.metal", "reader", "cpu-like")
    plan = make_plan(*((name, position, position, 1) for position, name in enumerate(names)))
    resources = [make_resource("reader", kind="cpu"), make_resource("cpu-like", kind="gpu"), make_resource("tpu")]
    problem = make_problem(
        resources=[*resources, *map(make_resource, names[:3])],
        layers=[make_layer(on={"reader": make_layer_time()})],
    )

    units = units_of(plan.stages, problem, load_catalogue())

    assert units["aws:c7i.4xlarge"] == PlanUnit(on_gpu=False, size=16)
    assert units["c7g.large"] == PlanUnit(on_gpu=False, size=2)
    assert units["aws:c7i.metal"] == PlanUnit(on_gpu=False)  # not listed, but of a family of CPUs
    assert not units["reader"].on_gpu
    assert units["cpu-like"].on_gpu
    assert units["tpu"].on_gpu  # by its name: nobody says what it is
    assert units_of(make_plan(("reader", 0, 9, 1)).stages)["reader"].on_gpu

    said = msgspec.structs.replace(plan.stages[3], kind="other")
    with pytest.raises(PlanError, match='`reader` is of kind "other"'):
        units_of([said])


def test_a_unit_of_the_catalogue_is_a_worker_with_all_of_its_threads():
    plan = make_plan(("c7g.large", 0, 9, 4))
    units = units_of(plan.stages, catalogue=load_catalogue())
    run = Run(model=RunModel(name="ctr-dnn"))

    machine = Machine(cores=8, gpus=0)
    whole = planned_run(run, place(plan.stages, machine, units=units), machine, None)
    small = Machine(cores=1, gpus=0)
    with pytest.raises(PlanError, match="needs 8 cores and 0 GPUs, and this machine has 1"):
        place(plan.stages, small, units=units)
    scaled = place(plan.stages, small, units=units, scale=True)

    assert [(worker.count, worker.threads) for worker in whole.workers] == [(4, 2)]
    assert [(worker.count, worker.threads) for worker in planned_run(run, scaled, small, None).workers] == [(1, 1)]
    assert predict(plan, scaled, None).samples_per_s is None  # nobody has priced half of a unit


def test_what_is_predicted_with_fewer_units_is_what_the_cost_model_says_of_them():
    # Half of each layer is shared: on 4 units 1 - 1/2 + 1/2/4 = 0.625 s, on 2 units 0.75 s; in proportion 1.25 s.
    half = make_layer_time(1.0, compute_parallel=0.5)
    problem = make_problem(resources=[make_resource("cpu")], layers=[make_layer("all", on={"cpu": half})], batch=100)
    stages = make_stages(("cpu", 0, 0, 4))
    plan = msgspec.structs.replace(
        make_plan(),
        stages=(msgspec.structs.replace(stages[0], seconds_per_batch=0.625),),
        samples_per_s=160.0,
        batch=100,
    )
    scaled = place(plan.stages, Machine(cores=2, gpus=0), scale=True)

    modelled, guessed = predict(plan, scaled, problem), predict(plan, scaled, None)

    assert modelled.planned_samples_per_s == pytest.approx(160.0)
    assert modelled.samples_per_s == pytest.approx(100 / 0.75)
    assert modelled.is_modelled
    assert guessed.samples_per_s == pytest.approx(80.0)
    assert not guessed.is_modelled


def test_steps_in_sync_fill_the_stages_and_drain_them():
    # Stages of 1 s and 3 s for a batch of 4 micro-batches: (1 + 3) / 4 + 3/4 * 3 = 3.25 s.
    layers = [make_layer(str(seconds), on={"cpu": make_layer_time(seconds)}) for seconds in (1.0, 3.0)]
    problem = make_problem(resources=[make_resource("cpu")], layers=layers, batch=500)
    plan, machine = make_plan(("cpu", 0, 0, 1), ("cpu", 1, 1, 1)), Machine(cores=2, gpus=0)
    stages = place(plan.stages, machine)
    run = planned_run(
        with_settings(Run(model=RunModel(name="ctr-dnn")), {"training.micro_batch": 125}, place="test"),
        stages, machine, 500,
    )  # fmt: skip

    assert in_sync(predict(plan, stages, problem), plan, stages, run) == pytest.approx(500 / 3.25)
    assert in_sync(predict(plan, stages, None), plan, stages, run) is None


def test_dense_parameters_that_do_not_fit_into_memory_are_refused():
    # 10 bytes of weights, as many of gradients and 10 of state on each of 3 workers; rows are on servers.
    on = {"cpu": make_layer_time()}
    dense = make_layer("dense", on=on, weight_bytes=10.0, optimizer_bytes=10.0)
    rows = make_layer("rows", on=on, kind="embedding", weight_bytes=1e9)
    problem = make_problem(resources=[make_resource("cpu")], layers=[rows, dense])
    stages = place(make_plan(("cpu", 0, 1, 3)).stages, Machine(cores=3, gpus=0))

    check_memory(problem, stages, Machine(cores=3, gpus=0, memory_bytes=90.0))
    with pytest.raises(PlanError, match="would hold 90 B"):
        check_memory(problem, stages, Machine(cores=3, gpus=0, memory_bytes=89.0))


def test_a_plan_that_a_run_names_must_fit_into_memory_too(tmp_path):
    dense = make_layer("dense", on={"cpu": make_layer_time()}, weight_bytes=10.0, optimizer_bytes=10.0)
    write_problem(make_problem(resources=[make_resource("cpu")], layers=[dense]), tmp_path / "problem.json")
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(make_plan(("cpu", 0, 0, 3))))
    run = with_settings(Run(model=RunModel(name="ctr-dnn")), {"training.plan": "plan.json"}, place="here")
    machine = Machine(cores=3, gpus=0, memory_bytes=90.0)

    assert len(with_plan_of(run, tmp_path, machine=machine).each_worker()) == 3
    with pytest.raises(PlanError, match="would hold 90 B"):
        with_plan_of(run, tmp_path, machine=replace(machine, memory_bytes=89.0))


def test_other_hosts_have_dense_parameters_on_servers_unless_someone_chose():
    plan = make_plan(("cpu", 0, 1, 1), ("cpu", 2, 5, 1))
    here, elsewhere = Machine(cores=2, gpus=0), Machine(cores=2, gpus=0, is_elsewhere=True)
    run = Run(model=RunModel(name="ctr-dnn"))

    assert placed(run, plan, None, here).run.training.dense == "ring"
    assert placed(run, plan, None, elsewhere).run.training.dense == "ps"
    assert placed(run, plan, None, elsewhere, dense="ring").run.training.dense == "ring"


def test_the_table_shows_planned_units_those_here_and_both_predictions(tmp_path, capsys):
    time = make_layer_time(1.0, compute_parallel=0.5)
    layers = [make_layer(str(number), on={"reader": time}) for number in range(6)]
    problem = make_problem(resources=[make_resource("reader", kind="cpu")], layers=layers, batch=500)
    write_problem(problem, tmp_path / "problem.json")
    plan = make_plan(("reader", 0, 5, 64))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))

    found = run_as_planned(Run(model=RunModel(name="ctr-dnn")), tmp_path / "plan.json", scale=True)
    show_places(found)

    told = capsys.readouterr().err
    cores = found.machine.cores
    assert found.stages[0].units == min(64, cores)
    assert f"this machine has {cores} core" in told
    assert "reader" in told
    here = 500 / (6 * (0.5 + 0.5 / min(64, cores)))
    assert found.prediction.samples_per_s == pytest.approx(here)
    assert "predicted with those here:" in told


def test_a_problem_of_another_model_is_refused_where_it_is_named_and_passed_over_where_it_is_not(tmp_path):
    write_problem(make_problem(), tmp_path / "problem.json")  # of two layers
    plan = make_plan(("cpu", 0, 5, 1))

    with pytest.raises(PlanError, match="is not the plan's problem"):
        problem_of(plan, tmp_path / "plan.json", tmp_path / "problem.json")
    told: list[str] = []
    assert problem_of(plan, tmp_path / "plan.json", None, tell=told.append) is None
    assert "is not looked at" in told[0]


@pytest.mark.processes
def test_a_plan_is_trained_as_planned(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_bytes(msgspec.json.encode(make_plan(("cpu", 0, 1, 1), ("cpu", 2, 5, 1))))
    arguments = ["train", "ctr-dnn", "--plan", str(plan), "--scale", "--samples", "2000", *SMALL]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])

    assert result.exit_code == 0, result.output
    stages = RunSummary.read(tmp_path / "run").stages
    assert [(stage.first_layer, stage.last_layer, stage.samples) for stage in stages] == [(0, 1, 2000), (2, 5, 2000)]
    measured = read_problem(tmp_path / "run" / "measured-problem.json")
    for stage in stages:  # one worker in each: what it took for a batch is what its layers take, all alike
        times = [layer.on["cpu"].compute_s for layer in measured.layers[stage.first_layer : stage.last_layer + 1]]
        assert sum(times) == pytest.approx(stage.busy_s / 2000 * 500)
        assert max(times) == pytest.approx(min(times))
    planned = CliRunner().invoke(app, ["plan", str(tmp_path / "run" / "measured-problem.json"), "--split-stages"])
    assert planned.exit_code == 0, planned.output


@pytest.mark.processes
@pytest.mark.parametrize(
    ("place", "units", "workers"), [("local", 1, ["worker"]), ("sharded", 2, ["stage-0-cpu-0", "stage-0-cpu-1"])]
)
def test_a_plan_that_says_where_rows_lie_is_trained_so(tmp_path, place, units, workers):
    plan = tmp_path / "plan.json"
    said = msgspec.structs.replace(make_plan(("cpu", 0, 5, units)), place=place, cores=units)
    plan.write_bytes(msgspec.json.encode(said))
    arguments = ["train", "ctr-dnn", "--plan", str(plan), "--scale", "--samples", "2000", *SMALL]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])

    assert result.exit_code == 0, result.output
    summary = RunSummary.read(tmp_path / "run")
    assert sorted(summary.workers) == workers
    assert sum(worker.samples for worker in summary.workers.values()) == 2000
    assert not summary.servers
    parts = {part["part"]: part for part in json.loads(result.stdout.splitlines()[-1])["parts"]}
    assert parts["whole"]["measured_seconds_per_batch"] > 0
    assert parts["whole"]["predicted_seconds_per_batch"] == 0.5  # 500 samples at 1000 a second
    blueprint = json.loads((tmp_path / "run" / "blueprint.json").read_text())
    assert blueprint["run"]["table"]["place"] == place
    measured = read_problem(tmp_path / "run" / "measured-problem.json")
    assert len(measured.layers) == 6


@pytest.mark.processes
def test_one_command_goes_from_a_model_to_a_comparison(tmp_path):
    arguments = ["run", "ctr-dnn", "--samples", "4000", "--batch", "512", "-o", "hidden=8,4", "-o", "width=4", *LAYERS]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["predicted_samples_per_s"] > 0
    assert found["measured_samples_per_s"] > 0
    assert [stage["resource"] for stage in found["stages"]] == ["cpu"]
    assert (tmp_path / "run" / "plan.json").is_file()
    assert found["stages"][0]["measured_seconds_per_batch"] > 0
    before = read_problem(tmp_path / "run" / "problem.json")
    after = read_problem(tmp_path / "run" / "measured-problem.json")
    seconds = [[layer.on["cpu"].compute_s for layer in problem.layers] for problem in (before, after)]
    factors = [now / then for then, now in zip(*seconds, strict=True) if then]
    assert max(factors) == pytest.approx(min(factors))  # layers keep their weights among each other


def test_a_speed_that_nothing_here_reaches_is_said(tmp_path):
    arguments = [
        "run",
        "ctr-dnn",
        "--min-samples-per-s",
        "1e12",
        "--batch",
        "64",
        "-o",
        "hidden=8,4",
        "-o",
        "width=4",
        *LAYERS,
    ]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])

    assert result.exit_code == 1
    assert "error:" in result.stderr
    assert "hint:" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
def test_a_policy_learns_from_runs_of_its_plans_on_what_a_run_measured(tmp_path):
    arguments = ["run", "ctr-dnn", "--samples", "4000", "--batch", "512", "-o", "hidden=8,4", "-o", "width=4", *LAYERS]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nname = "ctr-dnn"\noptions = { hidden = [8, 4], width = 4, num_rows = 26000 }\n'
        "[data]\noptions = { rows_per_slot = 1000 }\n[training]\nbatch = 64\n"
    )

    measured = str(tmp_path / "run" / "measured-problem.json")
    planned = CliRunner().invoke(
        app, ["plan", measured, "--method", "rl", "--rounds", "2", "--measured", str(file), "--json"]
    )

    assert planned.exit_code == 0, planned.output
    found = json.loads(planned.stdout.splitlines()[-1])
    assert found["measured_samples_per_s"] > 0
    assert found["stages"][0]["kind"] == "cpu"
    assert f"ran {found['stages'][0]['units']} x cpu:" in planned.stderr


def test_what_was_foretold_of_rows_is_set_beside_what_was_found(tmp_path):
    stage = Stage(
        resource="gpu", first_layer=0, last_layer=9, units=1, row_budgets={"rows": 3e8}, row_hits={"rows": 0.8}
    )
    plan = Plan(
        method="exact", stages=(stage,), samples_per_s=1.0, cost_per_hour=1.0, cost=1.0, lower_bound=1.0,
        optimal=True, seconds=0.0,
    )  # fmt: skip
    table = TableSummary(device_rows=1, host_rows=2, disk_rows=0, hit_ratio=0.75, lifted=3, lowered=4)
    summary = RunSummary(
        step=1, samples=1, seconds=1.0, loss=0.5, auc=0.5, metrics={}, workers={}, servers={}, imbalance=1.0,
        checkpoint="c", tables=(table,),
    )  # fmt: skip
    summary.write(tmp_path)
    said: list[str] = []
    found = rows_found(plan, tmp_path, tell=said.append)
    msgspec.structs.replace(summary, tables=()).write(tmp_path)

    assert found == {"row_hits": {"foretold": {"rows": 0.8}, "measured": {"rows": 0.75}}}
    assert "rows of `rows` on the device: 80.0% of look-ups foretold, 75.0% found" in said[0]
    assert rows_found(plan, tmp_path) == {}


def test_a_plan_of_one_gpu_that_keeps_some_rows_is_a_run_in_one_process():
    stage = Stage(resource="gpu", kind="gpu", first_layer=0, last_layer=9, units=1, row_budgets={"embedding": 3e8})
    machine = Machine(cores=2, gpus=1)
    run = planned_run(Run(model=RunModel(name="ctr-dnn")), place([stage], machine), machine, 500)
    both = [stage, Stage(resource="cpu", kind="cpu", first_layer=10, last_layer=11, units=1)]
    with_servers = planned_run(Run(model=RunModel(name="ctr-dnn")), place(both, machine), machine, 500)

    assert (run.table.place, run.table.device, run.table.device_bytes) == ("local", "cuda", 300_000_000)
    assert run.table.layer_bytes == {"embedding": 300_000_000}
    assert run.training.batch == 500
    assert not run.stages
    assert with_servers.table.place == "servers"
    assert len(with_servers.stages) == 2
