"""`blueprint.json`: what a run is, every default filled in."""

import json

import msgspec
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.models.recipe import RECIPES
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel
from tests.runtime.runs import DATA


def test_a_blueprint_has_every_default(tmp_path):
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": 10, "hidden": [4]}), data=RunData(options=DATA, samples=100)
    )

    prepare(run, tmp_path / "run")

    written = json.loads((tmp_path / "run" / "blueprint.json").read_text())["run"]
    recipe = RECIPES["ctr-dnn"]
    assert written["training"]["batch"] == recipe.batch
    assert (written["optimizer"]["name"], written["optimizer"]["learning_rate"]) == (
        recipe.optimizer, recipe.learning_rate,
    )  # fmt: skip
    assert written["checkpoint"]["every_s"] == 300.0  # every few minutes, unless told otherwise
    for section in msgspec.structs.fields(Run):
        kind = section.type
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert {field.encode_name for field in msgspec.structs.fields(kind)} <= set(written[section.encode_name])


def test_broken_rows_are_skipped_by_a_flag_of_train(tmp_path):
    rows = "".join(f"{i % 2},{i}\n" for i in range(100))
    (tmp_path / "rows.csv").write_text(f"label,x\n{rows}1,much\n0,more\n")
    (tmp_path / "run.toml").write_text(
        '[model]\nname = "tests.runtime.test_blueprint:line"\nloss = "squared"\n[data]\nname = "csv"\n'
        f'options = {{ path = "{tmp_path}/rows.csv", dense = ["x"], cache = false }}\n'
    )
    words = ["train", str(tmp_path / "run.toml"), "--in-process", "--batch", "20", "--learning-rate", "1e-9"]

    refused = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "one")])
    taken = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "two"), "--max-bad-rows", "2"])

    assert refused.exit_code == 1
    assert "broken row" in refused.stderr
    assert "--max-bad-rows" in refused.stderr
    assert taken.exit_code == 0, taken.output
    assert "2 broken rows skipped: 2 x `x` is not a number" in taken.output


def line():
    """Return a model of one number."""
    from torch import nn

    return nn.Sequential(nn.Linear(1, 1))
