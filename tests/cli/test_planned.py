"""`dovetail train --plan` and `dovetail run`: what is planned is what is run."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.errors import PlanError
from dovetail.runtime.folder import Summary
from dovetail.runtime.launch.from_plan import Machine, place, planned_run
from dovetail.spec import Plan
from dovetail.spec.plan import Stage
from dovetail.spec.run import Run, RunModel

SMALL = ["--set", "model.options.hidden=[8]", "--set", "model.options.width=4", "--set", "model.options.num_rows=26000"]


def make_plan(*stages: tuple[str, int, int, int]) -> Plan:
    return Plan(
        method="exact",
        stages=tuple(Stage(resource=r, first_layer=f, last_layer=last, units=u) for r, f, last, u in stages),
        samples_per_s=1000.0, cost_per_hour=1.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=500,
    )  # fmt: skip


def test_units_are_cores_and_gpus_and_a_plan_that_does_not_fit_is_refused():
    plan = make_plan(("cpu", 0, 1, 6), ("v100", 2, 5, 2), ("cpu-core", 6, 9, 2))

    with pytest.raises(PlanError, match="needs 8 cores and 2 GPUs, and this machine has 4"):
        place(plan, Machine(cores=4, gpus=2))
    with pytest.raises(PlanError, match="and this machine has 8 cores and 1 GPUs"):
        place(plan, Machine(cores=8, gpus=1))
    with pytest.raises(PlanError, match="0 GPUs that PyTorch can use"):
        place(plan, Machine(cores=8, gpus=0), scale=True)

    assert [stage.units for stage in place(plan, Machine(cores=4, gpus=1), scale=True)] == [3, 1, 1]


def test_every_unit_is_a_worker_of_its_stage():
    plan = make_plan(("cpu", 0, 1, 3), ("v100", 2, 9, 2))

    machine = Machine(cores=3, gpus=2)

    run = planned_run(Run(model=RunModel(name="ctr-dnn")), place(plan, machine), machine, plan.batch)

    assert [name for name, _ in run.workers_of(0)] == ["stage-0-cpu-0", "stage-0-cpu-1", "stage-0-cpu-2"]
    assert [(name, worker.device) for name, worker in run.workers_of(1)] == [
        ("stage-1-gpu-0", "cuda:0"),
        ("stage-1-gpu-1", "cuda:1"),
    ]
    assert run.training.batch == 500


@pytest.mark.processes
def test_a_plan_is_trained_as_planned(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_bytes(msgspec.json.encode(make_plan(("cpu", 0, 1, 1), ("cpu", 2, 5, 1))))
    arguments = ["train", "ctr-dnn", "--plan", str(plan), "--scale", "--samples", "2000", *SMALL]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])

    assert result.exit_code == 0, result.output
    stages = Summary.read(tmp_path / "run").stages
    assert [(stage.first_layer, stage.last_layer, stage.samples) for stage in stages] == [(0, 1, 2000), (2, 5, 2000)]


@pytest.mark.processes
def test_one_command_goes_from_a_model_to_a_comparison(tmp_path):
    arguments = ["run", "ctr-dnn", "--samples", "4000", "--batch", "512", "-o", "hidden=8,4", "-o", "width=4"]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run"), "--json"])

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["predicted_samples_per_s"] > 0
    assert found["measured_samples_per_s"] > 0
    assert [stage["resource"] for stage in found["stages"]] == ["cpu"]
    assert (tmp_path / "run" / "plan.json").is_file()
    assert (tmp_path / "run" / "problem.json").is_file()


def test_a_speed_that_nothing_here_reaches_is_said(tmp_path):
    arguments = ["run", "ctr-dnn", "--min-samples-per-s", "1e12", "--batch", "64", "-o", "hidden=8,4", "-o", "width=4"]

    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])

    assert result.exit_code == 1
    assert "error:" in result.stderr
    assert "hint:" in result.stderr
    assert not (tmp_path / "run").exists()
