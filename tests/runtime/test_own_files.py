"""A user's own files, by their path: trained on, evaluated, predicted and exported, with features of their columns."""

import datetime as dt
import json
import runpy
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.cli.run_file import find_run, settings_of
from dovetail.data import load_data
from dovetail.models import SlotEmbedding
from dovetail.runtime import train
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.spec.files import read_struct
from dovetail.spec.run import Run, RunData, RunModel

pytestmark = pytest.mark.processes
SMALL = {"num_rows": 200, "width": 4, "hidden": [8]}
TRANSFORMS = ["price = standardise(log(price))", "age = bucketise(age, 18, 30, 50)", "hour(time)", "cross(user, age)"]


class Bag(nn.Module):
    """An embedding and a line."""

    def __init__(self):
        super().__init__()
        self.rows = SlotEmbedding(num_rows=50, width=3, num_slots=1)
        self.line = nn.Linear(4, 1)

    def forward(self, ids, offsets, dense):
        return self.line(torch.cat([self.rows(ids, offsets), dense], dim=1))


def table(num_rows: int) -> pa.Table:
    """Return a log with what is missing in it."""
    return pa.table(
        {
            "label": [i % 2 for i in range(num_rows)],
            "price": pa.array([None if i % 9 == 0 else float(i % 37) for i in range(num_rows)]),
            "age": pa.array([None if i % 11 == 0 else i % 70 for i in range(num_rows)], pa.int64()),
            "user": [f"u{i % 23}" for i in range(num_rows)],
            "tags": [[f"t{k}" for k in range(i % 3)] for i in range(num_rows)],
            "time": [dt.datetime(2024, 1, 1) + dt.timedelta(minutes=37 * i) for i in range(num_rows)],
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a file by its path, from the command line."""
    place = tmp_path_factory.mktemp("own")
    arrow_parquet.write_table(table(400), place / "log.parquet")
    options = [f"--data-option=transforms={json.dumps(TRANSFORMS)}", "--data-option=cache=false"]
    words = ["train", "ctr-dnn", "--data", str(place / "log.parquet"), *options, "--out", str(place / "run")]
    words += ["--set", "model.options=" + "{num_rows = 200, width = 4, hidden = [8]}", "--batch", "100"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    return place, said


def test_what_was_chosen_is_said_and_written_down(trained):
    place, said = trained

    run = Blueprint.read(place / "run").run

    assert "taken by their names and types" in said.stderr
    assert run.data.name == "parquet"
    options = run.data.options
    assert options["dense"] == ["price"]
    assert options["slots"] == ["age", "user", "tags", "time_hour", "user_x_age"]
    logs = [np.log1p(i % 37) for i in range(400) if i % 9]
    assert options["transforms"][0].startswith(f"price = standardise(log(price), mean={np.mean(logs):.6f}"[:45])


def test_others_read_it_the_same_way(trained, tmp_path):
    place, _ = trained
    new = table(500).slice(400)
    arrow_parquet.write_table(new, tmp_path / "new.parquet")
    unlabelled = new.drop(["label"])
    arrow_parquet.write_table(unlabelled, tmp_path / "unlabelled.parquet")
    out = CliRunner().invoke(app, ["export", str(place / "run"), "--out", str(tmp_path / "model")])
    assert out.exit_code == 0, out.output

    scored = CliRunner().invoke(
        app, ["predict", str(place / "run"), "--data", str(tmp_path / "unlabelled.parquet"), "--out",
              str(tmp_path / "s.parquet")]
    )  # fmt: skip
    assert scored.exit_code == 0, scored.output
    scores = arrow_parquet.read_table(tmp_path / "s.parquet")["score"].to_pylist()

    by_file = evaluate_run(place / "run", data=str(tmp_path / "new.parquet"))
    by_frame = evaluate_run(place / "run", data=new.to_pandas())
    assert by_file.loss == by_frame.loss
    model = torch.export.load(tmp_path / "model" / "model.pt2").module()
    read = runpy.run_path(str(tmp_path / "model" / "read_rows.py"))["tensors"]
    for rows in (unlabelled.to_pylist(), unlabelled.to_pandas().to_dict("records")):
        found = model(*read(rows)).detach().numpy()
        np.testing.assert_allclose(found, np.array(scores), rtol=1e-5, atol=1e-6)
    times = pd.Series([row["time"].isoformat() for row in unlabelled.to_pylist()])
    lines = unlabelled.to_pandas().assign(time=times).to_json(orient="records", lines=True).splitlines()
    found = model(*read([json.loads(line) for line in lines])).detach().numpy()
    np.testing.assert_allclose(found, np.array(scores), rtol=1e-4, atol=1e-5)


def test_python_takes_paths_and_lists_of_them(tmp_path):
    for name in ("a", "b"):
        arrow_parquet.write_table(table(100), tmp_path / f"{name}.parquet")
    options = {"ignore": ["time"], "cache": False}
    how = {"model_options": SMALL, "data_options": options, "batch": 100, "workers": 1}

    one = train("ctr-dnn", tmp_path / "a.parquet", folder=tmp_path / "one", **how)
    both = train("ctr-dnn", [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], folder=tmp_path / "both", **how)

    assert one.samples == 100
    assert both.samples == 200
    assert one.predict(str(tmp_path / "b.parquet")).scores.shape[0] == 100


def test_a_module_of_ones_own_stays_as_it_is_and_is_used_afterwards(tmp_path):
    arrow_parquet.write_table(table(100), tmp_path / "a.parquet")
    model = Bag()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    options = {"dense": ["price"], "slots": ["user"], "cache": False}
    result = train(model, tmp_path / "a.parquet", data_options=options, folder=tmp_path / "run", batch=50)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    found = result.predict(str(tmp_path / "a.parquet")).scores
    batch = load_data("parquet", path=str(tmp_path / "a.parquet"), **options).read(0, 100)
    with torch.no_grad():
        expected = result.fill(model)(batch.ids, batch.offsets, batch.dense)[:, 0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_other_data_drop_the_options_that_they_do_not_know(tmp_path):
    arrow_parquet.write_table(table(10), tmp_path / "log.parquet")
    path = tmp_path / "run.toml"
    path.write_text('[model]\nname = "ctr-dnn"\n[data.options]\nrows_per_slot = 100\n')
    csv = tmp_path / "csv.toml"
    csv.write_text(
        '[model]\nname = "ctr-dnn"\n[data]\nname = "csv"\n'
        '[data.options]\npath = "a.csv"\ndelimiter = ";"\ndense = ["x"]\n'
    )
    log = str(tmp_path / "log.parquet")

    by_set = find_run(str(path), None, settings_of({}, ["data.name=parquet"], [f"path={log}"]), None)
    by_flag = find_run(str(path), None, {}, None, data=log)
    columns_stay = find_run(str(csv), None, {}, None, data=log)
    by_default = find_run("ctr-dnn", None, settings_of({}, ["data.name=parquet"]), None)

    assert by_set.data == by_flag.data == RunData(name="parquet", options={"path": log})
    assert columns_stay.data == RunData(name="parquet", options={"path": log, "dense": ["x"]})
    assert by_default.data == RunData(name="parquet")


def test_a_run_file_with_the_columns_is_written_and_means_the_same(trained, tmp_path, monkeypatch):
    place, _ = trained
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run.toml"
    words = ["train", "ctr-dnn", "--data", str(place / "log.parquet"), "--write-run", str(out), "--batch", "64"]
    words += ["--data-option", 'transforms=["standardise(price)", "hour(time)"]', "--data-option", "cache=false"]

    said = CliRunner().invoke(app, words)

    assert said.exit_code == 0, said.output
    run = read_struct(out, Run)
    assert run.training.batch == 64
    assert run.data.options["slots"] == ["age", "user", "tags", "time_hour"]
    assert "mean=" in run.data.options["transforms"][0]
    assert msgspec.structs.replace(run, data=RunData()).model == RunModel(name="ctr-dnn")
    assert not Path("runs").exists()


def test_data_that_are_not_there_are_answered_on_the_command_line(tmp_path):
    said = CliRunner().invoke(
        app, ["train", "ctr-dnn", "--data", str(tmp_path / "no.parquet"), "--out", str(tmp_path / "r")]
    )

    assert said.exit_code == 1
    assert f"error: there is no file `{tmp_path / 'no.parquet'}`" in said.stderr
    assert "hint:" in said.stderr
