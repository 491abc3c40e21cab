"""`dovetail launch` as users call it."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.manifests.target import TARGETS
from tests.manifests.makers import RUN_TEXT, make_plan


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(make_plan()))
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_a_folder_gets_the_manifest_the_plan_and_the_run_file(plan: Path, target: str) -> None:
    (plan.parent / "run.toml").write_text(RUN_TEXT)
    out = plan.parent / "out"

    result = CliRunner().invoke(app, ["launch", "--to", target, str(plan), "--out", str(out), "--json"])

    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert {path.name for path in out.iterdir()} == {TARGETS[target].file, "plan.json", "run.toml"}
    assert facts["manifest"] == (out / TARGETS[target].file).read_text()
    assert facts["types"][1] == {"type": "aws:g5.xlarge", "nodes": 2, "units": 1, "cores": 4, "gpus": 1}
    assert (out / "run.toml").read_text() == RUN_TEXT
    assert json.loads((out / "plan.json").read_text())["stages"] == json.loads(plan.read_text())["stages"]


def test_the_users_own_module_goes_along(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plan.parent
    (folder / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(1, 1)\n")
    (folder / "run.toml").write_text('[model]\nname = "net.py:build"\n[data]\nname = "clicks.parquet"\n')
    monkeypatch.chdir(folder)

    result = CliRunner().invoke(app, ["launch", "--to", "compose", "plan.json", "--out", "job"])

    assert result.exit_code == 0, result.output
    assert (folder / "job" / "net.py").read_bytes() == (folder / "net.py").read_bytes()
    assert "Your own code goes along: net.py." in result.stderr
    assert "put clicks.parquet beside this file" in result.stderr
    assert "Costs " in result.stderr


def test_without_a_folder_the_manifest_is_printed_and_without_a_run_file_it_says_where_it_goes(plan: Path) -> None:
    result = CliRunner().invoke(app, ["launch", "--to", "kuberay", str(plan), "--claim", "runs"])

    assert result.exit_code == 0, result.output
    config, job = yaml.safe_load_all(result.stdout)
    assert list(config["data"]) == ["plan.json"]
    assert job["metadata"]["name"] == "plan"
    assert "put it as run.toml" in result.stdout


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--to", "kubray"], "did you mean `kuberay`?"),
        (["--to", "slurm", "--per-node", "v100=2"], "is no type of the plan"),
        (["--to", "slurm", "--run", "missing.toml"], "missing.toml"),
        (["--to", "slurm", "--out", "plan.json/x"], "Not a directory"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(
    plan: Path, words: list[str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)

    result = CliRunner().invoke(app, ["launch", str(plan), *words])

    assert result.exit_code == 1
    assert wrong in result.output
    assert "hint: " in result.output


def test_a_plan_for_what_is_no_machine_of_ours_is_refused(tmp_path: Path) -> None:
    text = json.loads(msgspec.json.encode(make_plan(("tpu", 0, 9, 1))))
    text["stages"][0]["kind"] = "other"
    (tmp_path / "plan.json").write_text(json.dumps(text))

    result = CliRunner().invoke(app, ["launch", "--to", "slurm", str(tmp_path / "plan.json")])

    assert result.exit_code == 1
    assert 'is of kind "other"' in result.output
