"""Runs that began with objects of a program, looked at with other objects, files, and folders given as text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv
from torch import Tensor, nn

from dovetail.errors import DovetailError
from dovetail.runtime import evaluate_run, export_run, predict_run, restore_into, train

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


def test_a_traceback_ends_in_the_hint():
    with pytest.raises(DovetailError) as caught:
        evaluate_run("nowhere")

    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
