"""Scores out of a run: in Python, on the command line, and from exported files without Dovetail."""

import csv
import json
import runpy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.data import load_data
from dovetail.runtime import predict_run, train
from tests.runtime.test_validation import SMALL, Line

ROWS = [
    {"label": i % 2, "price": i / 7, "colour": f"c{i % 5}", "tags": "|".join(f"t{k}" for k in range(i % 4))}
    for i in range(300)
]
OPTIONS = {"dense": ["price"], "slots": ["colour", "tags"], "multi_valued": ["tags"], "cache": False}


def write(path, rows):
    """Write rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def clicked(tmp_path_factory):
    """A run on a CSV file."""
    place = tmp_path_factory.mktemp("clicked")
    path = write(place / "rows.csv", ROWS)
    result = train(
        "ctr-dnn", "csv", data_options={"path": path, **OPTIONS}, folder=place / "run", workers=1, batch=50, epochs=2,
        model_options={"num_rows": 100, "width": 4, "hidden": [8]},
    )  # fmt: skip
    return place, path, result


def test_predictions_are_what_the_restored_model_says(clicked):
    _, path, result = clicked
    batch = load_data("csv", path=path, **OPTIONS).read(0, 300)
    with torch.no_grad():
        scores = result.load_model().eval().predict(batch)

    found = result.predict()

    assert found.rows.tolist() == list(range(300))
    np.testing.assert_array_equal(found.scores, scores.numpy())
    np.testing.assert_allclose(found.probabilities, torch.softmax(scores, dim=1)[:, 1].numpy(), rtol=1e-5)


@pytest.mark.parametrize("suffix", [None, "csv", "parquet"])
def test_raw_rows_without_labels_are_scored_on_the_command_line(clicked, tmp_path, suffix):
    _, _, result = clicked
    raw = [{key: value for key, value in row.items() if key != "label"} for row in ROWS[:20]]
    path = write(tmp_path / "raw.csv", raw)
    words = ["predict", str(result.folder), "--data-option", f"path={path}"]
    out = tmp_path / f"scores.{suffix}"

    said = CliRunner().invoke(app, words if suffix is None else [*words, "--out", str(out)])

    assert said.exit_code == 0, said.output
    if suffix is None:
        table = list(csv.DictReader(said.stdout.splitlines()))
        chances = [float(row["probability"]) for row in table]
    elif suffix == "csv":
        chances = [float(row["probability"]) for row in csv.DictReader(out.read_text().splitlines())]
    else:
        chances = arrow_parquet.read_table(out)["probability"].to_pylist()
    np.testing.assert_allclose(chances, result.predict().probabilities[:20], rtol=1e-6)


def test_the_exported_reader_reads_raw_rows_of_csv_for_the_exported_model(clicked, tmp_path):
    _, path, result = clicked
    exported = result.export(tmp_path / "model")
    assert "read_rows.py" in exported.files
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert "FNV-1a" in facts["hash"]

    tensors = runpy.run_path(str(tmp_path / "model" / "read_rows.py"))["tensors"](ROWS)

    batch = load_data("csv", path=path, **OPTIONS).read(0, 300)
    for name, tensor in zip(facts["inputs"], tensors, strict=True):
        assert torch.equal(tensor, getattr(batch, name)), name
    scores = torch.export.load(tmp_path / "model" / "model.pt2").module()(*tensors)
    np.testing.assert_allclose(scores.detach().numpy(), result.predict().scores, rtol=1e-6)


def test_a_run_of_a_module_and_a_table_is_used_by_whoever_has_the_class(tmp_path):
    table = pa.table({"price": [2.0 * i / 50 for i in range(100)], "size": [i / 50 for i in range(100)]})
    result = train(
        Line(), table, data_options={"label": "price", "dense": ["size"]}, folder=tmp_path / "run", epochs=5, **SMALL
    )
    words = ["--model", "tests.runtime.test_validation:Line"]
    path = str(tmp_path / "new.csv")
    write(tmp_path / "new.csv", [{"size": 0.5, "price": 1.0}, {"size": 1.5, "price": 3.0}])
    given = ["--data", "csv", "--data-option", f"path={path}", "--data-option", "dense=size", "--data-option"]

    scored = predict_run(tmp_path / "run", pa.table({"size": [0.5, 1.5]}), model=Line())
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), *words, *given, "cache=false"])
    measured = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *words, *given, "label=price", "--json"])

    weight, bias = (float(each.detach()) for each in result.fill(Line()).parameters())
    assert scored.scores.tolist() == pytest.approx([0.5 * weight + bias, 1.5 * weight + bias], rel=1e-5)
    assert said.exit_code == 0, said.output
    assert [float(row["score"]) for row in csv.DictReader(said.stdout.splitlines())] == pytest.approx(
        scored.scores.tolist(), rel=1e-5
    )
    assert measured.exit_code == 0, measured.output
    misses = [(score - price) ** 2 for score, price in zip(scored.scores, (1.0, 3.0), strict=True)]
    assert json.loads(measured.stdout)["loss"] == pytest.approx(sum(misses) / 2, rel=1e-4)


def test_data_that_were_an_object_have_to_be_given(tmp_path):
    train(Line(), pa.table({"label": [0.0, 1.0], "x": [0.0, 1.0]}), folder=tmp_path / "run", **SMALL)

    said = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--model", "tests.runtime.test_validation:Line"])

    assert said.exit_code == 1
    assert "error: the data of this run were an object" in said.stderr
