"""Broken input: what happens, for each kind of it."""

import gzip
import os

import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest

from dovetail.data import BadRowsError, DataError, load_data
from tests.data.makers import criteo_line, write_criteo


def swapped(column: int, text: str) -> str:
    """Return a good line with one column replaced."""
    words = criteo_line(1, 3).split("\t")
    words[column] = text
    return "\t".join(words)


BROKEN_LINES = {
    "an empty line": ("", "not 40 columns"),
    "a column too few": (criteo_line().rsplit("\t", 1)[0], "not 40 columns"),
    "a column too many": (criteo_line() + "\tff", "not 40 columns"),
    "commas instead of tabs": (criteo_line().replace("\t", ","), "not 40 columns"),
    "a label of 2": (swapped(0, "2"), "the label is not 0 or 1"),
    "no label": (swapped(0, ""), "the label is not 0 or 1"),
    "a word for an integer": (swapped(4, "many"), "an integer is not one"),
    "a fraction for an integer": (swapped(4, "1.5"), "an integer is not one"),
    "an integer of 20 digits": (swapped(4, "9" * 20), "an integer is not one"),
    "a lone minus": (swapped(4, "-"), "an integer is not one"),
    "a category that is not hexadecimal": (swapped(20, "zz81"), "a category is not hexadecimal"),
    "bytes that are no text": (swapped(20, "\udcff\udcfe"), "a category is not hexadecimal"),
    "a category of 17 digits": (swapped(20, "0" * 17), "a category is not hexadecimal"),
}


@pytest.mark.parametrize("kind", BROKEN_LINES)
def test_a_broken_line_is_counted_reported_and_skipped(tmp_path, kind):
    line, reason = BROKEN_LINES[kind]
    text = "\n".join([criteo_line(0, 1), line, criteo_line(1, 2)]) + "\n"
    path = tmp_path / "day"
    path.write_bytes(text.encode(errors="surrogateescape"))

    source = load_data("criteo", path=str(path), cache=False, max_bad_rows=1)

    assert source.read(0, 3).sample_ids.tolist() == [0, 2]
    assert source.bad_rows.total == 1
    assert str(source.bad_rows.examples[0]) == f"{path}, row 2: {reason}"
    assert reason in source.bad_rows.summary()
    with pytest.raises(BadRowsError, match=f"row 2: {reason}") as caught:
        load_data("criteo", path=str(path), cache=False)
    assert "--max-bad-rows" in caught.value.hint


def test_broken_rows_count_again_when_the_cache_is_used(tmp_path):
    path = tmp_path / "day"
    path.write_text(criteo_line() + "\nbroken\n" + criteo_line() + "\n")
    options = {"path": str(path), "cache": tmp_path / "cache"}
    load_data("criteo", max_bad_rows=5, **options)

    assert load_data("criteo", max_bad_rows=5, **options).bad_rows.total == 1
    with pytest.raises(BadRowsError, match="at most 0 are allowed"):
        load_data("criteo", max_bad_rows=0, **options)


def test_reading_stops_at_the_first_row_too_many(tmp_path):
    path = tmp_path / "day"
    path.write_text(criteo_line() + "\n" + "broken\n" * 20)

    with pytest.raises(BadRowsError, match="at most 3 are allowed") as caught:
        load_data("criteo", path=str(path), cache=False, max_bad_rows=3)
    assert str(caught.value).count("not 40 columns") == 5  # the first few, not all


def test_a_file_of_another_format_is_named_as_such(tmp_path):
    path = tmp_path / "day"
    path.write_text("a\nb\nc\n")

    with pytest.raises(DataError, match="all 3 rows are broken") as caught:
        load_data("criteo", path=str(path), cache=False, max_bad_rows=1000)
    assert "right format" in caught.value.hint


def test_a_packed_file_that_was_cut_off_is_an_error(tmp_path):
    plain = write_criteo(tmp_path / "day", 2000)
    path = tmp_path / "day.gz"
    path.write_bytes(gzip.compress(plain.read_bytes())[:-500])

    with pytest.raises(DataError, match="ends too early") as caught:
        load_data("criteo", path=str(path), cache=False)
    assert "again" in caught.value.hint


def test_a_packed_file_that_is_not_packed_is_an_error(tmp_path):
    path = write_criteo(tmp_path / "day.gz", 10)

    with pytest.raises(DataError, match="cannot be read"):
        load_data("criteo", path=str(path), cache=False)


def test_packed_bytes_that_are_damaged_are_an_error(tmp_path):
    plain = write_criteo(tmp_path / "day", 2000)
    packed = bytearray(gzip.compress(plain.read_bytes()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    path = tmp_path / "day.gz"
    path.write_bytes(packed)

    with pytest.raises(DataError, match="day"):
        load_data("criteo", path=str(path), cache=False, max_bad_rows=10**6)


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "day").write_text("")

    with pytest.raises(DataError, match="no rows"):
        load_data("criteo", path=str(tmp_path / "day"), cache=False)


@pytest.mark.parametrize("path", ["nowhere/day", "nowhere/*.gz", "memory://nowhere/day"])
def test_a_path_that_leads_nowhere_is_an_error(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match="there is no file"):
        load_data("criteo", path=path, cache=False)


def test_an_address_nobody_knows_is_an_error():
    with pytest.raises(DataError, match="gopher"):
        load_data("criteo", path="gopher://old/day", cache=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path):
    path = write_criteo(tmp_path / "day", 1)
    path.chmod(0)

    with pytest.raises(DataError, match="may not be read"):
        load_data("criteo", path=str(path), cache=False)


BROKEN_CSV_ROWS = {
    "a column too few": ("1,2.0", "2 columns instead of 3"),
    "a column too many": ("1,2.0,red,blue", "4 columns instead of 3"),
    "a word for a number": ("1,much,red", "`price` is not a number"),
    "an infinite number": ("1,1e999,red", "`price` is not a finite number"),
    "an infinite label": ("1e999,2.0,red", "`label` is not a finite number"),
    "a word for a label": ("yes,2.0,red", "`label` is not a number"),
    "no label": (",2.0,red", "`label` is missing"),
}


@pytest.mark.parametrize("kind", BROKEN_CSV_ROWS)
def test_a_broken_csv_row_is_counted_reported_and_skipped(tmp_path, kind):
    row, reason = BROKEN_CSV_ROWS[kind]
    path = tmp_path / "t.csv"
    path.write_text(f"label,price,colour\n0,1.0,red\n{row}\n1,3.0,blue\n")

    source = load_data("csv", path=str(path), dense=["price"], slots=["colour"], cache=False, max_bad_rows=1)

    assert source.read(0, 3).sample_ids.tolist() == [0, 2]
    assert source.read(0, 3).dense[:, 0].tolist() == [1.0, 3.0]
    assert str(source.bad_rows.examples[0]) == f"{path}, row 2: {reason}"


def test_bytes_that_are_no_text_are_a_category_like_any_other(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"label,colour\n1,\xff\xfe\n0,red\n")

    assert load_data("csv", path=str(path), slots=["colour"], cache=False).read(0, 2).num_samples == 2


def test_a_quote_left_open_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('label,colour\n1,"red\n0,blue\n1,green\n')

    with pytest.raises(DataError) as caught:
        load_data("csv", path=str(path), slots=["colour"], cache=False, max_bad_rows=10)
    assert "quote" in caught.value.hint


def test_a_column_that_is_not_there_is_an_error_with_the_nearest_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("label,colour\n1,red\n")

    with pytest.raises(DataError, match="no column `color`") as caught:
        load_data("csv", path=str(path), slots=["color"], cache=False)
    assert "`colour`" in caught.value.hint


def test_a_column_that_is_there_twice_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("label,a,a\n1,2,3\n")

    with pytest.raises(DataError, match="two columns `a`"):
        load_data("csv", path=str(path), slots=["a"], cache=False)


def test_a_binary_file_is_no_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(bytes(range(128, 256)) * 10)

    with pytest.raises(DataError, match="line of text"):
        load_data("csv", path=str(path), slots=["a"], cache=False)


def parquet_of(path: os.PathLike[str], **columns: list[object]) -> str:
    """Write a Parquet file and return its path."""
    arrow_parquet.write_table(pa.table(columns), path)
    return str(path)


def test_broken_parquet_rows_are_counted_reported_and_skipped(tmp_path):
    nan = float("nan")
    path = parquet_of(
        tmp_path / "t.parquet",
        label=[0.0, 1.0, None, nan, 1.0],
        price=[1.0, nan, 2.0, 2.0, None],
        colour=["a", "b", "c", "d", "e"],
    )

    source = load_data("parquet", path=path, dense=["price"], slots=["colour"], cache=False, max_bad_rows=3)

    assert source.read(0, 5).sample_ids.tolist() == [0, 4]
    assert source.read(0, 5).dense[:, 0].tolist() == [1.0, 0.0]  # a missing number is 0, one that is none is broken
    assert source.bad_rows.by_reason == {
        "`price` is not a finite number": 1, "`label` is missing": 1, "`label` is not a finite number": 1,
    }  # fmt: skip


def test_a_parquet_file_that_was_cut_off_is_an_error(tmp_path):
    path = tmp_path / "t.parquet"
    parquet_of(path, label=[0, 1], colour=["a", "b"])
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load_data("parquet", path=str(path), slots=["colour"], cache=False)


def test_a_column_of_the_wrong_type_is_an_error(tmp_path):
    path = parquet_of(tmp_path / "t.parquet", label=[0, 1], price=[0.5, 1.5], tags=[["a"], ["b"]])

    with pytest.raises(DataError, match="slot `price` holds double"):
        load_data("parquet", path=path, slots=["price"], cache=False).read(0, 2)
    with pytest.raises(DataError, match="column `tags` holds list"):
        load_data("parquet", path=path, dense=["tags"], slots=["price"], cache=False)
