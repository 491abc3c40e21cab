"""Columns that nobody names are taken by their names and types; what could be several things is asked."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest

from dovetail.data import Clicks, DataError, as_source, load_data
from dovetail.data.files.write import write_parquet

COLUMNS = {
    "price": [1.5, 2.5],
    "cost": [Decimal("1.50"), Decimal("2.25")],
    "is_new": [True, False],
    "shop": [1, 2],
    "colour": ["red", "blue"],
    "tags": [["a"], []],
    "items": [[1, 2], [3]],
    "vector": [[0.5, 1.5], [2.5, 3.5]],
    "label": [0, 1],
}


@pytest.fixture
def path(tmp_path):
    arrow_parquet.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def kinds(source):
    """Return what the columns of a source are."""
    options = source.columns.options()
    names = ("label", "dense", "slots", "multi_valued", "fields")
    return {name: options[name] for name in names if options.get(name)}


@pytest.mark.parametrize(
    ("column", "way_out"),
    [
        (pa.array([[1, 2]]), 'multi_valued=["x"]'),
        (pa.array([0], pa.timestamp("us")), 'transforms=["hour(x)", "weekday(x)"]'),
        (pa.array([b"1"]).cast(pa.binary(1)), "among the slots"),
    ],
)
def test_what_is_no_number_says_what_it_can_be(column, way_out):
    with pytest.raises(DataError, match=r"column `x` holds .*, not numbers") as caught:
        as_source(pa.table({"label": [0], "x": column}), dense=["x"])

    assert way_out in caught.value.hint


def test_types_say_what_columns_are(path):
    source = load_data(path, cache=False)

    assert kinds(source) == {
        "label": "label",
        "dense": ["price", "cost", "is_new"],
        "slots": ["shop", "colour", "tags", "items"],
        "multi_valued": ["tags", "items"],
        "fields": ["vector"],
    }
    assert source.read(0, 2).dense.tolist() == [[1.5, 1.5, 1.0], [2.5, 2.25, 0.0]]
    assert source.read(0, 2).vector.tolist() == COLUMNS["vector"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ignore": ["vector", "c*", "items", "tags"]}, {"dense": ["price", "is_new"], "slots": ["shop"]}),
        ({"dense": "shop", "ignore": ["v*", "i*", "tags"]}, {"dense": ["price", "cost", "shop"], "slots": ["colour"]}),
        ({"dense": "shop"}, {"dense": ["shop"]}),
        ({"slots": ["c*r", "sh?p"]}, {"slots": ["colour", "shop"]}),
        ({"slots": ["tags"]}, {"slots": ["tags"], "multi_valued": ["tags"]}),
        ({"label": "price", "ignore": ["label", "vector", "c*", "i*", "tags"]}, {"label": "price", "slots": ["shop"]}),
    ],
)  # fmt: skip
def test_what_is_said_counts(path, options, expected):
    assert kinds(load_data(path, cache=False, **options)) == {"label": "label", **expected}


def write(folder, columns):
    arrow_parquet.write_table(pa.table(columns), folder / "t.parquet")
    return str(folder / "t.parquet")


LABEL = {"label": [0, 1], "x": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("columns", "options", "complaint", "hint"),
    [
        ({**LABEL, "target": [1, 0]}, {}, "`label`, `target` could be the label", "label=label"),
        ({"x": [0.5], "z": [1.5]}, {}, "none of its columns is called `label`: x, z", "label=COLUMN"),
        ({**LABEL, "weight": [1.0, 2.0]}, {}, "`weight` could be how much a sample counts", "weight=weight"),
        (
            {**LABEL, "time": [dt.datetime(2024, 1, 1)] * 2, "none": pa.nulls(2), "part": [{"a": 1}] * 2}, {},
            r"not clear from their types: `time` \(timestamp\[us\]\), `none` \(no values\), `part` \(struct",
            "ignore=time,none,part",
        ),
        (LABEL, {"ignore": ["z"]}, "has no column `z` to ignore", "x"),
        (LABEL, {"dense": ["I*"]}, r"no column that matches dense=I\*", ""),
        (LABEL, {"dense": ["x"], "transforms": ["y = log(x)"]}, "transforms make `y`, which nothing reads", "dense"),
        (LABEL, {"slots": ["x"]}, "slot `x` holds double, and not whole numbers alone", "bucketise"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_asked_with_the_names_of_the_columns(tmp_path, columns, options, complaint, hint):
    with pytest.raises(DataError, match=complaint) as caught:
        load_data(write(tmp_path, columns), cache=False, **options).read(0, 1)

    assert hint in caught.value.hint


def test_the_answers_that_are_proposed_work(tmp_path):
    path = write(tmp_path, {**LABEL, "target": [1, 0], "weight": [1.0, 2.0], "time": [dt.datetime(2024, 1, 1, 7)] * 2})

    source = load_data(path, cache=False, label="label", weight="weight", ignore="target", transforms="hour(time)")

    assert kinds(source) == {"label": "label", "dense": ["x"], "slots": ["time_hour"]}
    assert source.read(0, 2).weights.tolist() == [1.0, 2.0]


def test_text_tells_its_types_by_its_first_rows(tmp_path):
    (tmp_path / "t.csv").write_text(
        "label,price,shop,colour,is_new,tags\n" + "1,1.5,3,red,true,a|b\n0,2,4,,false,\n" * 9
    )
    (tmp_path / "s.csv").write_text("label;price\n1;2.5\n")

    source = load_data(str(tmp_path / "t.csv"), cache=False)

    assert kinds(source) == {
        "label": "label", "dense": ["price"], "slots": ["shop", "colour", "is_new", "tags"], "multi_valued": ["tags"]
    }  # fmt: skip
    assert source.read(0, 1).offsets.tolist() == [0, 1, 2, 3, 5]
    with pytest.raises(DataError, match="has one column, `label;price`") as caught:
        load_data("csv", path=str(tmp_path / "s.csv"), cache=False)
    assert 'delimiter=";"' in caught.value.hint
    assert kinds(load_data(str(tmp_path / "s.csv"), delimiter=";", cache=False))["dense"] == ["price"]


def test_made_clicks_are_trained_on_without_naming_a_column(tmp_path):
    clicks = Clicks(rows_per_slot=50, num_samples=200)
    write_parquet(clicks, tmp_path / "clicks.parquet", num_samples=200)

    source = load_data(str(tmp_path / "clicks.parquet"), cache=False)

    assert source.schema.dense == clicks.schema.dense
    assert [(slot.name, slot.multi_valued) for slot in source.schema.slots] == [
        (slot.name, slot.multi_valued) for slot in clicks.schema.slots
    ]


def test_tables_in_memory_are_taken_as_they_are_computed_with_and_by_what_is_said():
    table = pa.table({"label": [0, 1], "size": [1, 2], "tokens": [[1], [2]], "id": [7, 8], "colour": ["a", "b"]})

    source = as_source(table, ignore=["id"], transforms=["cross(size, colour)"])

    assert source.schema.dense == ("size",)
    assert [slot.name for slot in source.schema.slots] == ["colour", "size_x_colour"]
    assert [field.name for field in source.schema.fields] == ["tokens"]


@pytest.mark.parametrize(("kind", "name"), [("dense", "prise"), ("slots", "colours"), ("fields", "vectors")])
def test_a_misspelt_column_is_named_before_the_transform_that_it_leaves_unread(path, kind, name):
    options = {"dense": ["price"], "slots": ["colour"], "fields": ["vector"], "transforms": ["price = log(price)"]}
    options |= {kind: [name]} if kind == "dense" else {kind: [name], "dense": ["cost"]}

    with pytest.raises(DataError, match=f"has no column `{name}`") as caught:
        load_data("parquet", path=path, **options)

    assert caught.value.hint.startswith("did you mean")


def test_an_empty_file_and_an_empty_folder_are_called_so(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "folder").mkdir()

    with pytest.raises(DataError, match="has no columns") as caught:
        load_data("csv", path=str(tmp_path / "empty.csv"))
    assert "is it empty" in caught.value.hint
    with pytest.raises(DataError, match=r"the folder `.*folder` has no files in it"):
        load_data("parquet", path=str(tmp_path / "folder"))
