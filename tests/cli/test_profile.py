"""`dovetail profile` as a user meets it."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

import dovetail
from dovetail.cli.main import app
from dovetail.spec import read_problem

SMALL = ["-o", "num_rows=50", "-o", "width=4", "-o", "hidden=8,8", "--data-option", "rows_per_slot=50", "--batch", "64"]
LAYERS = ["--short-runs-s", "0"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_profile_becomes_a_problem_and_then_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "problem.toml"
    measured = run(
        "profile", "ctr-dnn", *SMALL, *LAYERS, "--out", path, "--price", "cpu=0.05", "--network-gb-per-s", "1"
    )
    assert measured.exit_code == 0, measured.stderr
    assert "embedding" in measured.stdout
    problem = read_problem(path)
    planned = run("plan", path, "--memory")

    assert problem.resource("cpu").price_per_hour == 0.05
    assert all(layer.on["cpu"].source == "measured" for layer in problem.layers)
    assert problem.layers[0].optimizer_bytes > 0
    assert problem.beside is None
    assert problem.machines == ()
    assert planned.exit_code == 0, planned.stderr
    assert "memory of one unit" in planned.stdout


def test_types_elsewhere_are_estimated_and_marked_so(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    result = run(
        *("profile", "ctr-dnn", *SMALL, *LAYERS, "--out", path, "--resources", "lambda:gpu_1x_a100"),
        *("--network-gb-per-s", "1", "--price", "cpu=0.04"),
    )
    assert result.exit_code == 0, result.stderr
    written = json.loads(path.read_text())
    layer = written["layer"][0]
    assert [(link["from"], link["to"], link["bytes_per_s"]) for link in written["link"]] == [
        ("cpu", "gpu_1x_a100", 1e9)
    ]

    assert layer["on"]["gpu_1x_a100"]["source"] == "estimated"
    assert layer["on"]["gpu_1x_a100"]["error"] > 0
    assert layer["on"]["cpu"]["source"] == "measured"


def test_a_plan_for_the_cloud_rents_nothing_that_stands_here(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    profiled = run(
        *("profile", "ctr-dnn", *SMALL, "--out", path, "--network-gb-per-s", "1"),
        *("--resources", "lambda:gpu_1x_a100", "--resources", "aws:c7i.large"),
    )
    assert profiled.exit_code == 0, profiled.stderr
    planned = run("plan", path, "--json")

    assert "what this machine has itself is left out: --price cpu=USD" in profiled.stderr
    assert "estimated for one unit of gpu_1x_a100" in profiled.stdout
    assert {each.name for each in dovetail.read_problem(str(path)).resources} == {"gpu_1x_a100", "c7i.large"}
    assert planned.exit_code == 0, planned.stderr
    assert "machine" not in json.loads(path.read_text())  # nor are these cores those of what is rented
    plan = json.loads(planned.stdout.splitlines()[-1])
    assert {stage["resource"] for stage in plan["stages"]} <= {"gpu_1x_a100", "c7i.large"}
    assert "first_node_per_hour" not in plan  # two clouds: nobody says what their first node costs


def test_a_plan_for_one_cloud_costs_an_hour_what_all_machines_cost_that_launch_asks_for(tmp_path: Path) -> None:
    path, plan_path = tmp_path / "problem.toml", tmp_path / "plan.json"
    profiled = run(
        *("profile", "ctr-dnn", *SMALL, "--out", path, "--network-gb-per-s", "1"),
        *("--resources", "aws:g5.xlarge", "--resources", "aws:c7i.large"),
    )
    assert profiled.exit_code == 0, profiled.stderr
    assert "for the first node, whose 3 cores run launcher, coordinator and servers" in profiled.stderr
    costs = []
    for spot in ([], ["--spot"]):
        planned = run("plan", path, "--out", plan_path, *spot)
        assert planned.exit_code == 0, planned.stderr
        plan = json.loads(plan_path.read_text())
        launched = run("launch", plan_path, "--to", "skypilot", "--json")  # the problem lies beside the plan
        assert launched.exit_code == 0, launched.stderr
        facts = json.loads(launched.stdout.splitlines()[-1])
        checked = json.loads(run("check", path, plan_path, "--json").stdout.splitlines()[-1])
        _, head, *rented = yaml.safe_load_all(facts["manifest"])

        assert f"${plan['first_node_per_hour']:.4g} of it for the first node" in planned.stdout
        assert facts["head_usd_per_hour"] == pytest.approx(plan["first_node_per_hour"])
        assert facts["usd_per_hour"] == pytest.approx(plan["cost_per_hour"])
        assert checked["cost_per_hour"] == pytest.approx(plan["cost_per_hour"])
        assert all(task["resources"].get("use_spot", False) is bool(spot) for task in rented)
        assert "use_spot" not in head["resources"]
        costs.append(plan["cost_per_hour"])
    assert costs[1] < costs[0]


def test_training_sees_as_many_samples_as_the_data_have(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("label,x\n" + "".join(f"{at % 2},{at}.5\n" for at in range(300)))
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))\n"
    )
    words = ["profile", f"{tmp_path}/net.py:build", "--data", tmp_path / "rows.csv", "--batch", "16", *LAYERS]

    found = run(*words, "--network-gb-per-s", "1", "--json")
    said = run(*words, "--network-gb-per-s", "1", "--json", "--samples", "5000")

    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["training"]["samples"] == 300
    assert json.loads(said.stdout.splitlines()[-1])["training"]["samples"] == 5000


@pytest.mark.processes
def test_what_runs_beside_the_layers_is_measured_unless_it_gets_no_time(tmp_path: Path) -> None:
    path = tmp_path / "problem.toml"
    result = run("profile", "ctr-dnn", *SMALL, "--short-runs-s", "6", "--samples", "6400", "--out", path)
    assert result.exit_code == 0, result.stderr
    problem = read_problem(path)

    assert problem.beside is not None
    assert problem.beside.read_core_s > 0
    assert problem.machines[0].cores >= 1
    assert "measuring reading (1 of " in result.stderr
    assert "beside the layers of a batch: reading " in result.stdout


@pytest.mark.parametrize("model", ["2emb", "dlrm", "matchnet", "nce"])
def test_every_model_can_be_profiled(model: str) -> None:
    result = run("profile", model, *LAYERS, "--batch", "16", "--network-gb-per-s", "1", "--json")

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["layer"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-model"], "no-such-model"),
        (["ctr-dnn", "--batch", "2"], "batch of 2"),
        (["ctr-dnn", "-o", "hiden=8"], "hiden"),
        (["ctr-dnn", "--data", "click"], "click"),
        (["ctr-dnn", "--price", "cpu=cheap"], "cpu=cheap"),
        (["ctr-dnn", "--price", "tpu=1"], "tpu"),
        (["ctr-dnn", "--resources", "aws:nothing"], "aws:nothing"),
        (["ctr-dnn", "--resources", "lambda:cpu_4x_general"], "no peaks"),
        (["ctr-dnn", "--network-gb-per-s", "0"], "0"),
    ],
)
def test_what_cannot_be_profiled_is_an_error_with_a_hint(arguments: list[str], named: str) -> None:
    result = run("profile", *arguments, "--json")

    assert result.exit_code == 1
    assert named in result.stderr
    assert "\nhint: " in result.stderr


def test_a_table_larger_than_a_gpu_is_profiled_planned_and_checked(tmp_path: Path) -> None:
    path, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    profiled = run(
        *("profile", "ctr-dnn", *SMALL, *LAYERS, "--out", path, "--resources", "lambda:gpu_1x_a100"),
        *("--network-gb-per-s", "1", "--row-cache", "20"),
    )
    assert profiled.exit_code == 0, profiled.stderr
    assert "estimating rows of embedding that are not on gpu_1x_a100" in profiled.stderr
    problem = json.loads(path.read_text())
    embedding = problem["layer"][0]
    embedding["weight_bytes"] = 1e12  # as if the table had many rows more
    path.write_text(json.dumps(problem))

    planned = run("plan", path, "--memory", "--out", plan)
    assert planned.exit_code == 0, planned.stderr
    stage = json.loads(plan.read_text())["stages"][0]
    checked = run("check", path, plan)

    assert stage["row_budgets"]["embedding"] <= embedding["on"]["gpu_1x_a100"]["cache"]["hits"][-1][0]
    assert 0 < stage["row_hits"]["embedding"] <= 1
    assert "rows of `embedding` on each gpu_1x_a100" in planned.stdout
    assert "<- the plan" in planned.stdout
    assert checked.exit_code == 0, checked.stderr
    assert "warning" not in checked.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_rows_on_a_gpu_that_nobody_has_are_not_asked_for() -> None:
    result = run("profile", "ctr-dnn", *SMALL, "--row-cache", "20", "--network-gb-per-s", "1")

    assert result.exit_code == 1
    assert "--row-cache 20: PyTorch finds no GPU here" in result.stderr
