"""Sequences of unlike lengths, from Parquet to raw rows that an exported model scores as the run does."""

import json
import runpy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from torch import Tensor, nn

from dovetail.data import DataError, as_source, load_data
from dovetail.data.read_rows import tensors
from dovetail.runtime import train
from dovetail.runtime.finished.export import export_model
from dovetail.runtime.model.build import build_model
from dovetail.spec.run import Run, RunModel

pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
pytestmark = pytest.mark.processes
ROWS = 90
OPTIONS = {"fields": ["history", "weights_of"], "dense": ["age"], "slots": ["city"], "hash_into": 30, "cache": False}


def table() -> pa.Table:
    """Return histories of up to six items, with empty and missing ones, and missing values within."""
    draw = np.random.default_rng(3)
    lengths = draw.integers(0, 7, ROWS)
    items = [list(map(int, draw.integers(1, 50, length))) for length in lengths]
    return pa.table(
        {
            "label": [int(sum(each) % 2) for each in items],
            "history": pa.array([None if at % 9 == 0 else each for at, each in enumerate(items)]),
            "weights_of": pa.array([[None, 0.5] if at % 5 == 0 else [at / 7] for at in range(ROWS)]),
            "age": pa.array([None if at % 4 == 0 else float(at) for at in range(ROWS)]),
            "city": [["rome", "oslo", None][at % 3] for at in range(ROWS)],
        }
    )


class Pooled(nn.Module):
    """The mean of a history, whatever its length."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(50, 4, sparse=True)
        self.cities = nn.EmbeddingBag(30, 4, sparse=True, mode="sum", include_last_offset=True)
        self.out = nn.Linear(9, 1)

    def pooled(self, history: Tensor) -> Tensor:
        there = (history != 0).unsqueeze(2).float()
        return (self.items(history) * there).sum(1) / there.sum(1).clamp(min=1.0)

    def forward(self, history: Tensor, weights_of: Tensor, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        known = [self.pooled(history), self.cities(ids, offsets), dense / 90 + weights_of.sum(1, keepdim=True)]
        return self.out(torch.cat(known, dim=1)).squeeze(1)


class Recurrent(Pooled):
    """The last state of a GRU, which torch.export unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def pooled(self, history: Tensor) -> Tensor:
        states, _ = self.gru(self.items(history))
        there = (history != 0).unsqueeze(2).float()
        return (states * there).sum(1)


@pytest.fixture(scope="module", params=[Pooled, Recurrent])
def exported(request, tmp_path_factory):
    """A model that was trained on histories, its folder, what was written, and the run's own scores."""
    place = tmp_path_factory.mktemp("sequences")
    arrow_parquet.write_table(table(), place / "rows.parquet", row_group_size=40)
    result = train(
        request.param(), str(place / "rows.parquet"), data_options=OPTIONS, folder=place / "run", batch=30,
        optimizer="sgd", learning_rate=0.1,
    )  # fmt: skip
    return request.param, place / "model", result.export(place / "model"), result.predict().scores


MAKES = {
    "pandas": lambda: table().to_pandas().to_dict("records"),
    "polars": lambda: pl.from_arrow(table()).rows(named=True),
    "arrow": lambda: table().to_pylist(),
    "json": lambda: [json.loads(json.dumps(row)) for row in table().to_pylist()],
}


@pytest.mark.parametrize("make", MAKES)
def test_raw_rows_are_scored_as_the_run_scores_them(exported, make):
    _, folder, made, scores = exported
    assert made.why_no_program == ""
    reader = runpy.run_path(str(folder / "read_rows.py"))["tensors"]

    model = torch.export.load(folder / "model.pt2").module()

    found = model(*reader(MAKES[make]())).detach().numpy()
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)


def test_a_program_takes_any_length_or_says_which_one(exported):
    kind, folder, made, _ = exported
    row = {"history": [1] * 20, "weights_of": [1.0], "age": 3.0, "city": "rome"}
    reader = runpy.run_path(str(folder / "read_rows.py"))["tensors"]
    model = torch.export.load(folder / "model.pt2").module()

    if kind is Pooled:
        assert (made.lengths, made.least_samples) == ({}, 1)
        assert model(*reader([row])).shape == (1,)
    else:
        assert made.lengths["history"] == 6
        with pytest.raises(ValueError, match="row 0: `history` has 20 values, and the program takes 6"):
            reader([row])
        assert "`history` has 6 values a sample" in (folder / "README.txt").read_text()


class Counted(Pooled):
    """Counts its samples by len(), which torch.export cannot follow."""

    def forward(self, history: Tensor, weights_of: Tensor, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        return super().forward(history, weights_of, ids, offsets, dense).reshape(len(dense))


def test_a_model_whose_size_export_cannot_leave_open_is_told_what_to_write_instead(tmp_path):
    source = as_source(table(), **{name: value for name, value in OPTIONS.items() if name != "cache"})
    model = build_model(Run(model=RunModel(name="counted")), source.schema, Counted())

    made = export_model(model, source, tmp_path / "model")

    assert "write x.shape[0] for len(x)" in made.why_no_program
    assert "model.pt2" not in made.files


def test_whole_numbers_stay_whole_and_what_is_missing_within_is_nought():
    source = as_source(table(), **{name: value for name, value in OPTIONS.items() if name != "cache"})
    batch = source.read(0, 6)

    assert batch.extra["history"].dtype == torch.int64
    assert batch.extra["weights_of"].tolist()[0] == [0.0, 0.5]
    assert batch.extra["history"][0].tolist() == [0] * batch.extra["history"].shape[1]


def test_empty_text_is_a_sequence_of_no_numbers(tmp_path):
    (tmp_path / "rows.csv").write_text("label,history\n1,3|4\n0,\n1,5\n")

    batch = load_data("csv", path=str(tmp_path / "rows.csv"), fields=["history"], whole=["history"]).read(0, 3)

    assert batch.extra["history"].tolist() == [[3, 4], [0, 0], [5, 0]]


def test_lists_of_text_are_no_field_and_the_way_out_is_said():
    with pytest.raises(DataError, match="field `tags` holds lists of string") as caught:
        as_source(pa.table({"label": [0], "tags": [["red"]]}), fields=["tags"])

    assert "multi_valued=['tags']" in caught.value.hint


FACTS = {
    "inputs": ["history", "user"],
    "schema": {
        "dense": [],
        "slots": [],
        "fields": [
            {"name": "history", "shape": [None], "dtype": "int64"},
            {"name": "user", "shape": [], "dtype": "int64"},
        ],
    },
    "columns": {"separator": "|"},
}


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("history", [1.5], "is 1.5, and was a whole number in training"),
        ("history", ["a"], "is 'a', not a number"),
        ("history", 3, "is 3, not a list"),
        ("history", [[1], [2]], "has 2 dimensions, and had 1 in training"),
        ("user", None, "is missing"),
    ],
)
def test_what_training_would_not_read_is_refused_with_row_and_column(column, value, complaint):
    good = {"history": [1, None], "user": 7}

    with pytest.raises(ValueError, match=complaint) as caught:
        tensors([good, {**good, column: value}], FACTS)

    assert f"row 1: `{column}`" in str(caught.value)
    assert [each.tolist() for each in tensors([good, {"history": "3|4|5", "user": 8}], FACTS)] == [
        [[1, 0, 0], [3, 4, 5]],
        [7, 8],
    ]
