"""Formats: which one a path is of, and that each holds what another library wrote."""

import gzip
import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.feather as arrow_feather
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.data import DataError, as_source, load_data
from dovetail.data.files.formats import format_of, is_path
from dovetail.data.load import how_made
from dovetail.data.read_rows import tensors
from dovetail.runtime.finished.export import reader_facts
from tests.data.makers import bags_of, same, write_criteo

ROWS = 50
TABLE = pa.table(
    {
        "label": [i % 2 for i in range(ROWS)],
        "price": [i / 7 for i in range(ROWS)],
        "shop": [i % 5 for i in range(ROWS)],
        "colour": [f"c{i % 6}" for i in range(ROWS)],
    }
)


def write(table: pa.Table, path: Path, kind: str, *, rows: int = 16) -> Path:
    """Write a table in one of the formats, in pieces of so many rows."""
    if kind == "parquet":
        arrow_parquet.write_table(table, path, row_group_size=rows)
    elif kind in ("arrow", "stream"):
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    elif kind == "feather":
        arrow_feather.write_feather(table, str(path), chunksize=rows)
    elif kind == "csv":
        arrow_csv.write_csv(table, path)
    elif kind == "numpy":
        np.savez(path, **{name: np.array(table[name].to_pylist()) for name in table.column_names})
    elif kind == "webdataset":
        write_tar(path, table.to_pylist())
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(table).save_to_disk(str(path), num_shards=2)
    return path


def write_tar(path: Path, rows: list[dict[str, object]]) -> None:
    """Write samples as a WebDataset has them."""
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(rows):
            for ending, content in {
                "cls": str(row["label"]).encode(),
                "json": json.dumps({name: value for name, value in row.items() if name != "label"}).encode(),
            }.items():
                member = tarfile.TarInfo(f"shard/{number:05}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


NAMES = {
    "parquet": "t.parquet", "arrow": "t.arrow", "stream": "s.arrow", "feather": "t.feather", "csv": "t.csv",
    "numpy": "t.npz", "webdataset": "t.tar", "huggingface": "saved",
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_a_file_of_every_format_holds_the_same_samples_without_a_column_named(tmp_path, kind, capfd):
    path = write(TABLE, tmp_path / NAMES[kind], kind)

    source = load_data(str(path), cache=False)
    batch = source.read(0, ROWS)

    assert batch.labels.tolist() == TABLE["label"].to_pylist()
    assert batch.dense[:, 0].tolist() == pytest.approx(TABLE["price"].to_pylist())
    assert source.schema.dense == ("price",)
    assert [slot.name for slot in source.schema.slots] == ["shop", "colour"]
    facts = {"inputs": ["ids"], "schema": asdict(source.schema), **reader_facts(source)}
    assert torch.equal(batch.ids, tensors(TABLE.to_pylist(), facts)[0])
    assert 'dense = ["price"]' in capfd.readouterr().err
    name, options = how_made(source)
    assert (name, options["slots"]) == ({"stream": "arrow", "feather": "arrow"}.get(kind, kind), ["shop", "colour"])
    again = load_data(name, **options)
    assert same(again.read(0, ROWS), batch)
    assert "columns of" not in capfd.readouterr().err  # nothing was left to choose


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "numpy", "webdataset", "csv"])
def test_parts_are_read_again_from_any_place(tmp_path, kind):
    from dataclasses import replace

    from dovetail.data.files import FileSource
    from dovetail.data.load import TABLES, Said, columns_of

    path = write(TABLE, tmp_path / NAMES[kind], kind)
    decoder = TABLES[{"stream": "arrow"}.get(kind, kind)](rows_per_part=7)
    decoder = replace(decoder, columns=columns_of(decoder, str(path), Said()))

    source = FileSource(str(path), decoder)
    whole = source.read(0, ROWS)

    assert whole.sample_ids.tolist() == list(range(ROWS))
    for first, last in ((45, 50), (3, 20), (0, 1), (13, 15), (30, 30)):
        assert same(source.read(first, last), whole.slice(first, last))


@pytest.mark.parametrize("ending", [".gz", ".zst", ".bz2", ".xz"])
def test_packed_text_holds_what_the_plain_one_holds(tmp_path, ending):
    plain = write(TABLE, tmp_path / "t.csv", "csv")
    packed = tmp_path / f"t.csv{ending}"
    if ending == ".zst":
        with pa.CompressedOutputStream(str(packed), "zstd") as stream:
            stream.write(plain.read_bytes())
    else:
        import bz2
        import lzma

        packed.write_bytes({".gz": gzip, ".bz2": bz2, ".xz": lzma}[ending].compress(plain.read_bytes()))

    source = load_data(str(packed), cache=False)

    assert same(source.read(0, ROWS), load_data(str(plain), cache=False).read(0, ROWS))
    assert same(source.read(30, 40), load_data(str(plain), cache=False).read(30, 40))


def test_a_zstd_stream_is_read_again_from_an_earlier_and_a_later_place(tmp_path):
    from dovetail.data.files import CsvDecoder, FileSource
    from dovetail.data.files.columns import Columns

    with pa.CompressedOutputStream(str(tmp_path / "t.csv.zst"), "zstd") as stream:
        stream.write(write(TABLE, tmp_path / "t.csv", "csv").read_bytes())
    decoder = CsvDecoder(columns=Columns(dense=("price",)), rows_per_part=5)

    source = FileSource(str(tmp_path / "t.csv.zst"), decoder)

    prices = pytest.approx(TABLE["price"].to_pylist())
    assert [source.read(i, i + 1).dense.item() for i in reversed(range(ROWS))][::-1] == prices


def test_folders_patterns_lists_and_hive_partitions(tmp_path):
    for day in ("2024-01-01", "2024-01-02", "__HIVE_DEFAULT_PARTITION__"):
        for shop in (1, 2):
            folder = tmp_path / "log" / f"day={day}" / f"shop={shop}"
            folder.mkdir(parents=True)
            write(TABLE.drop(["shop"]), folder / "part-0.parquet", "parquet")
    (tmp_path / "log" / "_SUCCESS").write_text("")

    source = load_data(str(tmp_path / "log"), cache=False)
    some = load_data(str(tmp_path / "log" / "day=2024-01-0*" / "shop=2" / "*.parquet"), cache=False)
    by_list = as_source([tmp_path / "log" / "day=2024-01-01", tmp_path / "log" / "day=2024-01-02"], cache=False)
    one = load_data(str(tmp_path / "log" / "day=2024-01-01" / "shop=1" / "part-0.parquet"), cache=False)

    assert [slot.name for slot in source.schema.slots] == ["colour", "day", "shop"]
    assert source.num_samples == 6 * ROWS
    read_back = arrow_parquet.read_table(tmp_path / "log", partitioning="hive").to_pylist()
    rows = [{**row, "day": None if row["day"] is None else str(row["day"])} for row in read_back]
    rows.sort(key=lambda row: (row["day"] or "__", row["shop"]))
    facts = {"inputs": ["ids"], "schema": asdict(source.schema), **reader_facts(source)}
    found = bags_of(source.read(0, 6 * ROWS))
    assert sorted(map(str, found)) == sorted(str([[i] for i in tensors([row], facts)[0].tolist()]) for row in rows)
    assert [slot.name for slot in some.schema.slots] == ["colour", "day"]  # the pattern says which shop
    assert [slot.name for slot in by_list.schema.slots] == ["colour", "day", "shop"]
    assert [slot.name for slot in one.schema.slots] == ["colour"]
    named = load_data("parquet", path=str(tmp_path / "log" / "day=2024-01-01"), slots=["day"], cache=False)
    assert named.num_samples == 2 * ROWS


def test_a_files_own_column_counts_where_a_folder_has_its_name(tmp_path):
    (tmp_path / "shop=9").mkdir()
    write(TABLE, tmp_path / "shop=9" / "t.parquet", "parquet")
    plain = write(TABLE, tmp_path / "t.parquet", "parquet")

    source = load_data(str(tmp_path / "shop=*" / "t.parquet"), cache=False)

    assert same(source.read(0, ROWS), load_data(str(plain), cache=False).read(0, ROWS))


def test_the_public_log_and_tab_separated_text_are_told_apart_by_their_content(tmp_path):
    criteo = write_criteo(tmp_path / "day_0", 5)
    packed = tmp_path / "day.tsv.gz"
    packed.write_bytes(gzip.compress(criteo.read_bytes()))
    (tmp_path / "t.tsv").write_text("label\tprice\n0\t1.5\n1\t2.5\n")

    assert format_of(str(criteo)).name == "criteo"
    assert load_data(str(packed), cache=False).num_samples == 5
    assert load_data(str(tmp_path / "t.tsv"), cache=False).read(0, 2).dense.tolist() == [[1.5], [2.5]]


def test_arrays_by_name_are_columns_lists_and_matrices(tmp_path):
    draw = np.random.default_rng(0)
    arrays = {
        "dense": draw.random((4, 3), dtype=np.float32), "ids": np.arange(8).reshape(4, 2),
        "pixels": draw.random((4, 2, 2), dtype=np.float32), "items": np.arange(12).reshape(4, 3),
        "label": np.array([0.0, 1.0, 1.0, 0.0]),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "t.npz", **arrays)
    np.save(tmp_path / "x.npy", np.array([(1.5, "a", 0), (2.5, "b", 1)], [("p", "f8"), ("c", "U3"), ("label", "i4")]))
    np.save(tmp_path / "m.npy", arrays["dense"])

    source = load_data(str(tmp_path / "t.npz"), cache=False)
    batch = source.read(0, 4)

    assert source.schema.dense == ("dense_0", "dense_1", "dense_2")
    assert [(slot.name, slot.multi_valued) for slot in source.schema.slots] == [
        ("ids_0", False), ("ids_1", False), ("items", True)
    ]  # fmt: skip
    assert torch.equal(batch.dense, torch.from_numpy(arrays["dense"]))
    assert torch.equal(batch.pixels, torch.from_numpy(arrays["pixels"]))
    assert load_data(str(tmp_path / "x.npy"), cache=False).read(0, 2).dense.tolist() == [[1.5], [2.5]]
    plain = load_data(str(tmp_path / "m.npy"), label="x_0", cache=False)
    assert torch.equal(plain.read(0, 4).dense, torch.from_numpy(arrays["dense"][:, 1:]))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda p: (p / "t.csv").write_bytes(b"PAR1" + b"0" * 50), "called like csv, and holds parquet"),
        (lambda p: [write(TABLE, p / "a.parquet", "parquet"), write(TABLE, p / "b.csv", "csv")], "is parquet, and"),
        (lambda p: (p / "t.bin").write_bytes(b"\x00\xff\x01"), "is not known by its ending nor by its content"),
        (lambda p: (p / "t.feather").write_bytes(b"FEA1" + b"0" * 50), "of the first version of Feather"),
        (lambda p: (p / "t.arrow").write_bytes(b"ARROW1" + b"0" * 50), "cannot be read as Arrow"),
        (lambda p: (p / "t.npz").write_bytes(b"PK\x03\x04" + b"0" * 50), "cannot be read as NumPy's"),
        (lambda p: np.save(p / "t.npy", np.array([{}], dtype=object)), "cannot be read as NumPy's"),
        (lambda p: np.savez(p / "t.npz", label=np.zeros(3), x=np.zeros(4)), "`x` has 4 samples, others 3"),
        (lambda p: (p / "t.tar").write_bytes(b"0" * 2000), "cannot be read as a tar"),
        (lambda p: (p / "dataset_dict.json").write_text('{"splits": ["train", "test"]}'), "several data sets"),
    ],
)
def test_files_that_are_not_what_they_are_called_are_refused_with_a_way_out(tmp_path, make, complaint):
    make(tmp_path)

    with pytest.raises(DataError, match=complaint) as caught:
        load_data(str(tmp_path), cache=False)

    assert caught.value.hint


def test_words_that_are_no_paths_are_still_names():
    assert [is_path(word) for word in ("clicks", "paquet", "a/b", "x.parquet", "s3://b/c", "log_*")] == [
        False, False, True, True, True, True
    ]  # fmt: skip
    with pytest.raises(DataError, match="there are no data `paquet`"):
        load_data("paquet")


WORDS = st.one_of(st.none(), st.text("abü|😀 \\\"'", max_size=5))
WHOLE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
FRACTIONS = st.one_of(st.none(), st.floats(-1e30, 1e30))
KINDS = {
    "text": (pa.string(), WORDS),
    "large": (pa.large_string(), WORDS),
    "category": (pa.dictionary(pa.int32(), pa.string()), WORDS),
    "whole": (pa.int64(), WHOLE),
    "small": (pa.int8(), st.one_of(st.none(), st.integers(-128, 127))),
    "number": (pa.float64(), FRACTIONS),
    "flag": (pa.bool_(), st.one_of(st.none(), st.booleans())),
    "words": (pa.list_(pa.string()), st.one_of(st.none(), st.lists(WORDS, max_size=3))),
    "numbers": (pa.large_list(pa.int64()), st.one_of(st.none(), st.lists(WHOLE, max_size=3))),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table of any columns, with a label."""
    rows = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    columns = {"label": pa.array(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))}
    for number, kind in enumerate(kinds):
        of_arrow, values = KINDS[kind]
        columns[f"{kind} {number}"] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), of_arrow)
    return pa.table(columns)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables(), kind=st.sampled_from(["parquet", "arrow", "stream"]), rows=st.integers(1, 5), data=st.data())
def test_any_table_in_any_layout_is_what_a_reader_in_plain_python_makes_of_its_rows(tmp_path, table, kind, rows, data):
    path = write(table, tmp_path / NAMES[kind], kind, rows=rows)

    source = load_data(str(path), cache=False)
    batch = source.read(0, table.num_rows)

    facts = {"inputs": ["dense", "ids", "offsets"], "schema": asdict(source.schema), **reader_facts(source)}
    dense, ids, offsets = tensors(table.to_pylist(), facts)
    assert torch.equal(batch.dense, dense)
    assert torch.equal(batch.ids, ids)
    assert torch.equal(batch.offsets, offsets)
    first = data.draw(st.integers(0, table.num_rows))
    last = data.draw(st.integers(first, table.num_rows))
    assert same(source.read(first, last), batch.slice(first, last))
