"""Runs that began with objects of a program, looked at with other objects, files, and folders given as text."""

from __future__ import annotations

import runpy

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv
from torch import Tensor, nn

from dovetail.errors import DovetailError
from dovetail.runtime import evaluate_run, export_run, predict_run, restore_into, resume, train

pytestmark = pytest.mark.processes


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, dense: Tensor) -> Tensor:
        return self.line(dense).squeeze(1)


def table(first: int, last: int) -> pa.Table:
    price = np.arange(first, last, dtype=np.float32) / 100
    return pa.table({"label": 2 * price, "price": price})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("objects") / "run"
    train(Line(), table(0, 300), folder=folder, data_options={"label": "label"}, batch=50, workers=1)
    return str(folder)


def test_other_data_are_evaluated_as_they_are(run):
    found = evaluate_run(run, data=table(300, 400), data_options={"label": "label"}, model=Line())

    assert (found.samples, found.held_out, found.on) == (100, True, "the data given")


def test_a_file_is_read_by_the_columns_of_the_run(run, tmp_path):
    csv.write_csv(table(300, 400), tmp_path / "test.csv")
    options = {"path": str(tmp_path / "test.csv")}

    found = evaluate_run(run, data="csv", data_options={**options, "label": "label"}, model=Line())
    scores = predict_run(run, "csv", data_options=options, model=Line()).scores

    expected = restore_into(Line(), run)(torch.arange(300, 400).reshape(-1, 1) / 100).detach().numpy()
    assert found.samples == 100
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_run_is_exported_with_its_table_and_into_a_folder_given_as_text(run, tmp_path):
    exported = export_run(run, str(tmp_path / "model"), model=Line(), source=table(0, 300))

    assert "model.safetensors" in exported.files


class Bags(nn.Module):
    """A table of as many rows as ids are hashed into, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 2, sparse=True, mode="sum", include_last_offset=True)
        self.out = nn.Linear(3, 1)

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        return self.out(torch.cat([self.bag(ids, offsets), dense], dim=1)).squeeze(1)


def test_the_runs_own_table_is_read_with_the_columns_of_the_run(tmp_path):
    rows = pa.table(
        {"clicked": [0, 1] * 40, "price": [float(at) for at in range(80)], "user": [f"u{at % 31}" for at in range(80)]}
    )
    options = {"label": "clicked", "hash_into": 20, "transforms": ["price = standardise(price)"]}
    model = Bags()
    trained = train(model, rows, data_options=options, folder=tmp_path / "run", batch=20)

    found = evaluate_run(tmp_path / "run", model=Bags(), source=rows)
    export_run(tmp_path / "run", tmp_path / "model", model=Bags(), source=rows)
    going_on = resume(tmp_path / "run", model=Bags(), data=rows, epochs=2)

    scores = torch.from_numpy(trained.predict(rows).scores)
    clicked = torch.tensor(rows["clicked"].to_pylist(), dtype=torch.float32)
    expected = nn.functional.binary_cross_entropy_with_logits(scores, clicked)
    assert found.loss == pytest.approx(float(expected), rel=1e-4)
    read = runpy.run_path(str(tmp_path / "model" / "read_rows.py"))["tensors"]
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    np.testing.assert_allclose(program(*read(rows.to_pylist())).detach().numpy(), scores, rtol=1e-4, atol=1e-5)
    assert going_on.samples == 160


def test_a_traceback_ends_in_the_hint():
    with pytest.raises(DovetailError) as caught:
        evaluate_run("nowhere")

    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
