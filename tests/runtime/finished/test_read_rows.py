"""The reader that goes with an exported model reads rows of every make as training did, or refuses them by name."""

import datetime as dt
import json
import runpy
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch

from dovetail.data import load_data
from dovetail.data.read_rows import plain, tensors
from dovetail.runtime import train
from dovetail.runtime.finished.export import READER_PROGRAM

pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
pytestmark = pytest.mark.processes
ROWS = 120
WORDS = ["red", "blau", "青", "", None, "naïve 😀"]
HUGE = 2**60 + 1
"""A whole number that no float holds."""


def table() -> pa.Table:
    """Return rows with every kind of column, each with what can be missing in it."""
    number = range(ROWS)
    return pa.table(
        {
            "label": [i % 2 for i in number],
            "price": pa.array([None if i % 5 == 0 else i / 7 for i in number], pa.float64()),
            "size": pa.array([None if i % 7 == 0 else i - 3 for i in number], pa.int64()),
            "is_new": pa.array([None if i % 4 == 0 else i % 3 == 0 for i in number], pa.bool_()),
            "colour": [WORDS[i % len(WORDS)] for i in number],
            "kind": pa.array([None if i % 9 == 0 else f"k{i % 4}" for i in number]).dictionary_encode(),
            "shop": pa.array([None if i % 6 == 0 else i % 5 for i in number], pa.int32()),
            "user": pa.array([HUGE + i % 8 for i in number], pa.int64()),
            "is_app": pa.array([None if i % 8 == 0 else i % 3 == 0 for i in number], pa.bool_()),
            "tags": [None if i % 6 == 0 else [f"t{k}" for k in range(i % 3)] for i in number],
            "items": pa.array([None if i % 7 == 0 else [HUGE + k for k in range(i % 4)] for i in number]),
        }
    )


DENSE = ["price", "size", "is_new"]
SLOTS = ["colour", "kind", "shop", "user", "is_app", "tags", "items"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run on a Parquet file, what it exported, and the scores it gives itself."""
    place = tmp_path_factory.mktemp("exported")
    arrow_parquet.write_table(table(), place / "rows.parquet")
    options = {"path": str(place / "rows.parquet"), "dense": DENSE, "slots": SLOTS, "multi_valued": ["tags", "items"]}
    options |= {"cache": False, "hash_into": {"colour": 50, "user": 7}}
    result = train(
        "ctr-dnn", "parquet", data_options=options, folder=place / "run", workers=1, batch=40,
        model_options={"num_rows": 100, "width": 4, "hidden": [8]},
    )  # fmt: skip
    result.export(place / "model")
    return place / "model", load_data("parquet", **options).read(0, ROWS), result.predict().scores


def polars_rows():
    return pl.from_arrow(table()).rows(named=True)


def pandas_rows():
    """Whole numbers that may be missing are floats here, and missing ones NaN; tags are arrays."""
    return table().to_pandas().to_dict("records")


def pandas_rows_with_missing_marks():
    """The same with pandas' own types, whose missing value is NA."""
    return table().to_pandas(types_mapper=pd.ArrowDtype).to_dict("records")


def arrow_scalars():
    return [{name: table()[name][row] for name in table().column_names} for row in range(ROWS)]


def pandas_table():
    return table().to_pandas()


def polars_table():
    return pl.from_arrow(table())


def json_lines():
    return [json.loads(json.dumps(row)) for row in table().to_pylist()]


MAKES = [pandas_rows, pandas_rows_with_missing_marks, polars_rows, table().to_pylist, arrow_scalars, json_lines]
MAKES += [table, pandas_table, polars_table]


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_rows_of_every_make_are_read_as_training_read_them(exported, make):
    folder, batch, scores = exported
    facts = json.loads((folder / "model.json").read_text())

    found = runpy.run_path(str(folder / "read_rows.py"))["tensors"](make())

    for name, tensor in zip(facts["inputs"], found, strict=True):
        assert torch.equal(tensor, getattr(batch, name)), name
    model = torch.export.load(folder / "model.pt2").module()
    np.testing.assert_allclose(model(*found).detach().numpy(), scores, rtol=1e-5, atol=1e-6)


def test_the_reader_needs_pytorch_alone(exported):
    folder, _, scores = exported
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import torch; from read_rows import tensors\n"
        "model = torch.export.load(sys.argv[1] + '/model.pt2').module()\n"
        "print(json.dumps(model(*tensors([json.loads(line) for line in sys.stdin])).tolist()))\n"
        "assert not {'dovetail', 'pyarrow', 'pandas', 'numba'} & set(sys.modules)"
    )
    lines = "\n".join(json.dumps(row) for row in table().to_pylist())

    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], input=lines, capture_output=True, text=True, timeout=120, cwd="/",
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), scores, rtol=1e-5, atol=1e-6)
    assert "dovetail" not in READER_PROGRAM


FACTS = {
    "inputs": ["dense", "ids", "offsets"],
    "schema": {
        "dense": ["price"],
        "slots": [{"name": "colour", "multi_valued": False}, {"name": "tags", "multi_valued": True}],
    },
    "columns": {"separator": "|"},
}
GOOD = {"price": 1.0, "colour": "red", "tags": ["a"]}


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("price", "dear", "is 'dear', not a number"),
        ("price", [1.0, 2.0], "not a number"),
        ("price", float("inf"), "not a finite number"),
        ("price", 1e39, "not a finite number"),
        ("price", dt.datetime(2024, 1, 1), "not a number"),
        ("colour", 1.5, "categories are text or whole numbers"),
        ("colour", float(HUGE), "categories are text or whole numbers"),
        ("colour", ["red"], "categories are text or whole numbers"),
        ("colour", dt.date(2024, 1, 1), "categories are text or whole numbers"),
        ("tags", {"a": 1}, "categories are text or whole numbers"),
        ("tags", ["a", 0.5], "categories are text or whole numbers"),
    ],
)
def test_what_training_would_not_read_is_refused_with_row_and_column(column, value, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        tensors([GOOD, {**GOOD, column: value}], FACTS)

    assert f"row 1: `{column}`" in str(caught.value)


def test_one_row_that_is_no_list_is_refused():
    with pytest.raises(ValueError, match=r"give a list of rows, \[row\]"):
        tensors(GOOD, FACTS)


def test_a_row_without_a_column_is_refused():
    with pytest.raises(ValueError, match="row 0 has no column `colour`"):
        tensors([{"price": 1.0, "tags": []}], FACTS)


def test_a_bool_is_refused_where_training_read_text():
    facts = {**FACTS, "columns": {"separator": "|", "is_text": True}}

    with pytest.raises(ValueError, match="`colour` is True, and was text in training"):
        tensors([{**GOOD, "colour": True}], facts)


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), pa.scalar(None, pa.int64()),
     Decimal("NaN")],
    ids=repr,
)  # fmt: skip
def test_every_mark_of_a_missing_value_is_one(value):
    assert plain(value) is None
    (dense, ids, offsets), (_, expected, _) = (
        tensors([{"price": given, "colour": given, "tags": given}], FACTS) for given in (value, None)
    )

    assert dense.tolist() == [[0.0]]
    assert ids.tolist() == expected.tolist()
    assert offsets.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (pd.Categorical(["a", None]), ["a", None]),
        (pd.Series([1.0, None]), [1.0, None]),
        (pl.Series(["a", None]), ["a", None]),
        (pa.scalar([1, None]), [1, None]),
        (np.datetime64("2024-01-02T03:04:05.123456789"), dt.datetime(2024, 1, 2, 3, 4, 5, 123456)),
        (("a", np.str_("b")), ["a", "b"]),
    ],
    ids=repr,
)
def test_values_of_other_libraries_become_pythons_own(value, expected):
    assert plain(value) == expected
