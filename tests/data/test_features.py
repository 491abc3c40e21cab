"""Features made of columns: what they are, and that training and the exported reader make the same of them."""

import datetime as dt
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import DataError, as_source, load_data
from dovetail.data.files.features import Moments, parse_feature
from dovetail.data.load import how_made
from dovetail.data.read_rows import key_of, tensors
from dovetail.runtime.finished.export import reader_facts

PRICES = [0.0, 3.0, None, -2.0, 10.0, 6.5]
TIMES = [dt.datetime(2024, 1, 1, 13, 5, 59, 999999), None, dt.datetime(1969, 12, 31, 23, 59, 59), *[
    dt.datetime(2024, 2, 29, hour) for hour in (0, 23, 7)
]]  # fmt: skip
TABLE = pa.table(
    {
        "label": [0, 1, 0, 1, 0, 1],
        "price": pa.array(PRICES, pa.float64()),
        "user": ["a", None, "c", "", "ü", "a"],
        "shop": pa.array([1, 2, None, 4, 5, 2**60 + 1], pa.int64()),
        "time": pa.array(TIMES, pa.timestamp("us")),
    }
)


def made(transforms, table=TABLE):
    """Return a source of a table with features."""
    return as_source(table, transforms=transforms, ignore=["time"])


def both(source, table=TABLE):
    """Return what training reads and what the exported reader does: numbers, ids and offsets."""
    facts = {"inputs": ["dense", "ids", "offsets"], "schema": asdict(source.schema), **reader_facts(source)}
    batch = source.read(0, table.num_rows)
    return (batch.dense, batch.ids, batch.offsets), tensors(table.to_pylist(), facts)


def test_numbers_are_what_their_formulas_say():
    source = made(["a = log(price)", "b = clip(price, 0, 5)", "c = clip(price, high=1)", "d = standardise(price)"])
    known = [value for value in PRICES if value is not None]
    mean, deviation = float(np.mean(known)), float(np.std(known))

    dense = source.read(0, 6).dense

    place = source.schema.dense.index
    expected = {
        "a": [math.log1p(max(x, 0.0)) if x is not None else 0.0 for x in PRICES],
        "b": [min(max(x, 0.0), 5.0) if x is not None else 0.0 for x in PRICES],
        "c": [min(x, 1.0) if x is not None else 0.0 for x in PRICES],
        "d": [(x - mean) / deviation if x is not None else 0.0 for x in PRICES],
    }
    for name, values in expected.items():
        assert dense[:, place(name)].tolist() == pytest.approx(values, rel=1e-6), name


def ids_of(source, name):
    """Return the ids of a single-valued slot."""
    place = [slot.name for slot in source.schema.slots].index(name)
    batch = source.read(0, source.num_samples)
    return batch.ids.view(batch.num_samples, -1)[:, place].tolist()


def test_categories_are_hashed_like_the_text_of_what_they_are():
    source = made(["bucketise(price, 0, 3, 10)", "hour(time)", "weekday(time)", "cross(user, shop)"])

    def keys(slot, values):
        return [key_of(slot, None, value if isinstance(value, bytes) else str(value).encode()) for value in values]

    assert ids_of(source, "price") == keys("price", [1, 2, "", 0, 3, 2])
    assert ids_of(source, "time_hour") == keys("time_hour", [13, "", 23, 0, 23, 7])
    assert ids_of(source, "time_weekday") == keys("time_weekday", [0, "", 2, 3, 3, 3])  # Monday, Wednesday, Thursday
    pairs = [b"a\x1f1", b"\x1f2", b"c\x1f", b"\x1f4", "ü\x1f5".encode(), f"a\x1f{2**60 + 1}".encode()]
    assert ids_of(source, "user_x_shop") == keys("user_x_shop", pairs)


CHAINS = [
    ["price = standardise(log(price))", "age = bucketise(price, -1, 0, 1)", "cross(age, user)"],
    ["hour(time)", "cross(time_hour, weekday(time))", "x = standardise(clip(price, -1, 7))"],
    ["x = standardise(price)", "y = standardise(log(x))", "z = bucketise(y, 0.5)"],
]


@pytest.mark.parametrize("transforms", CHAINS)
def test_what_is_made_of_what_was_made_is_the_same_for_the_reader(transforms):
    here, there = both(made(transforms))

    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


EARLY, LATE = dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)


@settings(max_examples=60, deadline=None)
@given(
    prices=st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9), st.integers(0, 9).map(float)), min_size=1, max_size=20),
    transforms=st.lists(st.sampled_from([
        "log(price)", "clip(price, -3, 8.5)", "standardise(price)", "n = standardise(log(price))",
        "b = bucketise(price, -1, 0, 2.5, 7)", "cross(b, t)", "c = cross(bucketise(price, 5), t)", "hour(t)",
    ]), max_size=5),
    times=st.lists(st.one_of(st.none(), st.datetimes(EARLY, LATE)), min_size=20, max_size=20),
)  # fmt: skip
def test_any_features_are_the_same_for_training_and_for_the_reader(prices, transforms, times):
    table = pa.table({
        "label": [0] * len(prices), "price": pa.array(prices, pa.float64()), "b": ["x"] * len(prices),
        "t": pa.array([time and time.isoformat() for time in times[: len(prices)]], pa.string()),
    })  # fmt: skip
    if not any(price is not None for price in prices) and any("standardise" in each for each in transforms):
        return
    source = as_source(table, transforms=transforms)

    here, there = both(source, table)

    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


def test_moments_of_every_make_are_the_same_moment(tmp_path):
    moments = [
        dt.datetime(2024, 3, 10, 22, 30, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
        None,
    ]  # 3:30 on Monday, UTC
    zone = pa.timestamp("ns", "America/New_York")
    text = ["2024-03-10T22:30:00.123456789-05:00", None]
    seconds = [None if each is None else int(each.timestamp()) for each in moments]
    rows = {
        "zone": pa.array(moments, zone), "text": pa.array(text),
        "ms": pa.array([each and each * 1000 + 999 for each in seconds]),
        "day": pa.array([dt.date(2024, 3, 11), None]), "label": [0, 1],
    }  # fmt: skip
    transforms = ["hour(zone)", "hour(text)", 'h = hour(ms, unit="ms")', "weekday(day)", "weekday(zone)"]
    arrow_parquet.write_table(pa.table(rows), tmp_path / "t.parquet")

    source = load_data(str(tmp_path / "t.parquet"), transforms=transforms, ignore=["text", "ms"], cache=False)

    names = {"zone_hour": 3, "text_hour": 3, "h": 3, "day_weekday": 0, "zone_weekday": 0}
    for name, value in names.items():
        assert ids_of(source, name) == [key_of(name, None, str(value).encode()), key_of(name, None, b"")], name
    facts = {"inputs": ["ids"], "schema": asdict(source.schema), **reader_facts(source)}
    table = pa.table(rows)
    of_pandas = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get).to_dict("records")
    assert isinstance(of_pandas[0]["zone"], pd.Timestamp)
    assert of_pandas[1]["zone"] is pd.NaT
    for each in (table.to_pylist(), of_pandas):
        assert torch.equal(tensors(each, facts)[0], source.read(0, 2).ids)
    with pytest.raises(ValueError, match="row 0: `zone` is the number 5, and nobody says of what unit"):
        tensors([{**table.to_pylist()[0], "zone": 5}], facts)


def test_means_are_written_down_and_hold_for_other_data(tmp_path):
    for name, low in (("old", 0.0), ("new", 1000.0)):
        table = pa.table({"label": [0, 1] * 50, "x": [low + i for i in range(100)]})
        arrow_parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=7)

    source = load_data(str(tmp_path / "old.parquet"), transforms=["standardise(x)"], cache=False)
    name, options = how_made(source)
    other = load_data(name, **{**options, "path": str(tmp_path / "new.parquet")})

    feature = parse_feature(options["transforms"][0])
    assert dict(feature.call.settings) == pytest.approx({"mean": 49.5, "deviation": np.std(np.arange(100))})
    assert str(feature) == options["transforms"][0]
    assert float(source.read(0, 100).dense.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(other.read(0, 100).dense.mean()) == pytest.approx(1000 / np.std(np.arange(100)), rel=1e-5)


def test_a_column_that_is_the_same_everywhere_becomes_zero():
    source = as_source(pa.table({"label": [0, 1], "x": [0.1, 0.1]}), transforms=["standardise(x)"])

    assert source.read(0, 2).dense.tolist() == [[0.0], [0.0]]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), max_size=6))
def test_moments_added_in_portions_are_those_of_all(portions):
    found, whole = Moments(), [number for portion in portions for number in portion]
    for portion in portions:
        found.add(np.array(portion, dtype=np.float64))

    assert found.count == len(whole)
    if whole:
        assert found.mean == pytest.approx(np.mean(whole), rel=1e-9, abs=1e-6)
        assert math.sqrt(found.squares / found.count) == pytest.approx(np.std(whole), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    ["price = log(price)", "a = cross(hour(time), user)", "b = bucketise(x, 1, 2.5)", "c = clip(x, low=0, high=3)",
     "'unit price' = standardise(log('unit price'), mean=1.5, deviation=2.0)", 'h = hour(time, unit=\'ms\')'],
)  # fmt: skip
def test_a_feature_is_written_as_it_is_read(text):
    assert str(parse_feature(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("price = lgo(price)", "there is no `lgo`"),
        ("price = log(", "cannot be read"),
        ("price", "makes nothing"),
        ("= log(x)", "has no name"),
        ("cross(a)", "is of 2 columns"),
        ("log(3)", "`3` in the place of a column"),
        ("log(a + b)", "`a \\+ b` in the place of a column"),
        ("log(x, 3)", "is told 1 things, and takes 0"),
        ("clip(x)", "clips nothing"),
        ("clip(x, 5, 2)", "clips nothing"),
        ("clip(x, bottom=2)", "`clip` has no `bottom`"),
        ("bucketise(x)", "the bounds are"),
        ("bucketise(x, 2, 1)", "the bounds are"),
        ("standardise(x, mean=2)", "a mean or a deviation alone"),
        ("standardise(x, 0, 0)", "the deviation is not above 0"),
        ('hour(t, unit="h")', "the unit is 'h'"),
        (7, "a transform is 7"),
    ],
)
def test_a_feature_that_cannot_be_is_refused_with_a_way_out(text, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        parse_feature(text)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("transform", "complaint"),
    [
        ("log(user)", "`user` is not a number"),
        ("log(cost)", "has no column `cost`"),
        ("log(tags)", "column `tags` holds lists"),
        ("hour(price)", "column `price` holds double, not moments"),
        ("hour(user)", "`user` is no date such as"),
        ("cross(price, user)", "slot `price` holds double, and not whole numbers alone"),
        ("standardise(empty)", "column `empty` holds no number"),
    ],
)
def test_a_column_that_a_feature_cannot_be_made_of_is_named(tmp_path, transform, complaint):
    table = pa.table(
        {"label": [0], "price": [1.5], "user": ["a"], "tags": [["a"]], "empty": pa.array([None], pa.float64())}
    )
    arrow_parquet.write_table(table, tmp_path / "t.parquet")

    for read in (lambda: load_data(str(tmp_path / "t.parquet"), transforms=[transform], cache=False).read(0, 1),
                 lambda: as_source(table, transforms=[transform])):  # fmt: skip
        with pytest.raises(DataError, match=complaint) as caught:
            read()
        assert caught.value.hint
