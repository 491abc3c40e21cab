"""`dovetail plan` and `dovetail check` on machines, as a user meets them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.main import app
from dovetail.spec import write_problem
from tests.planner.test_layout_questions import problem


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_problem(problem(units={"gpu": 4}), tmp_path / "problem.toml")
    return tmp_path / "problem.toml"


def test_the_table_says_where_rows_are_what_each_part_takes_and_what_was_compared(path: Path) -> None:
    done = run("plan", path, "--max-cost-per-hour", 50)

    assert done.exit_code == 0
    for words in ("rows    on servers", "cores   ", "read ", "servers ", "stage 0", "step", "one process on gpu", "x)"):
        assert words in done.stdout


def test_a_written_plan_is_priced_the_same_by_the_check_part_by_part(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert run("plan", path, "--max-cost-per-hour", 50, "--json", "--out", out).exit_code == 0
    plan = json.loads(out.read_text())
    checked = json.loads(run("check", path, out, "--json").stdout)

    assert plan["place"] == "servers"
    assert checked["samples_per_s"] == pytest.approx(plan["samples_per_s"])
    assert (checked["parts"], checked["cores"]) == (plan["parts"], plan["cores"])
    assert checked["violations"] == checked["warnings"] == []

    plan["servers"], plan["readers"] = 1, 14
    out.write_text(json.dumps(plan))
    crowded = run("check", path, out)
    assert crowded.exit_code == 1
    assert "cores are more than the 16 of all machines" in crowded.stdout

    del plan["place"], plan["servers"], plan["readers"]
    out.write_text(json.dumps(plan))
    assert "does not say where rows are kept" in run("check", path, out).stderr


def test_the_papers_model_leaves_machines_and_what_runs_beside_out(path: Path, tmp_path: Path) -> None:
    write_problem(problem().as_in_paper(), tmp_path / "bare.toml")
    plans = [
        json.loads(run("plan", *each, "--json").stdout)
        for each in ((path, "--model", "paper"), (tmp_path / "bare.toml",))
    ]
    for plan in plans:
        del plan["seconds"]

    assert plans[0] == plans[1]
    assert "place" not in plans[0]


def test_a_machine_without_cores_left_for_readers_is_an_error_with_the_values(tmp_path: Path) -> None:
    write_problem(problem(cores=1), tmp_path / "problem.toml")
    done = run("plan", tmp_path / "problem.toml")

    assert done.exit_code == 1
    assert "one process takes 2 cores, and machine `here` has 1" in done.stderr
    assert "hint: raise `cores` of machine `here` from 1 to 2" in done.stderr
