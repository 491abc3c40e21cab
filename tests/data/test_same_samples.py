"""The same samples in the same order, to the bit: in memory, from files and the cache, by any reader."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.data import Batch, DataError, DecodedCache, Loader, Source, as_source, concatenate
from dovetail.data.cache import KeptPart
from dovetail.data.errors import DataWarning
from dovetail.data.files import Columns, FileSource, ParquetDecoder
from dovetail.data.files.decoder import DecodedPart
from dovetail.data.files.opening import DataFile
from dovetail.data.load import load_data
from tests.data.makers import same

COLUMNS = Columns(dense=("price",), slots=("age", "colour", "tags"), multi_valued=("tags",))
KINDS = pa.schema(
    [
        ("label", pa.float32()),
        ("price", pa.float64()),
        ("age", pa.int32()),
        ("colour", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)


def loaded(source: Source, *, window: int, block: int, batch: int = 7, **wishes: object) -> Batch:
    """Return an epoch of a source in its order."""
    loader = Loader(source, batch_size=batch, seed=3, epoch=1, block_samples=block, window_samples=window, **wishes)
    return concatenate(list(loader))


rows = st.fixed_dictionaries(
    {
        "label": st.sampled_from([0.0, 1.0, 0.5, float("nan"), None]),  # the last two are broken
        "price": st.one_of(st.none(), st.floats(-5, 5, width=32)),
        "age": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "colour": st.one_of(st.none(), st.text(max_size=3)),
        "tags": st.one_of(st.none(), st.lists(st.text("ab", max_size=2), max_size=3)),
    }
)
files = st.lists(st.lists(rows, max_size=12), min_size=1, max_size=3).filter(
    lambda found: any(row["label"] in (0.0, 1.0, 0.5) for file in found for row in file)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(files=files, group=st.integers(1, 5), part=st.integers(1, 6), window=st.integers(1, 40), block=st.integers(1, 6))
def test_any_layout_of_files_gives_the_samples_of_the_table(tmp_path_factory, files, group, part, window, block):
    folder = tmp_path_factory.mktemp("layout")
    for number, content in enumerate(files):
        table = pa.Table.from_pylist(content, schema=KINDS)
        arrow_parquet.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    whole = pa.concat_tables([pa.Table.from_pylist(content, schema=KINDS) for content in files])
    options = {"label": "label", "dense": ["price"], "slots": ["age", "colour", "tags"], "multi_valued": ["tags"]}
    memory = as_source(whole, max_bad_rows=1000, **options)

    def opened(cache: DecodedCache | None) -> FileSource:
        decoder = ParquetDecoder(columns=COLUMNS, rows_per_part=part)
        return FileSource(str(folder / "*.parquet"), decoder, cache=cache, max_bad_rows=1000)

    streaming, cache = opened(None), folder / "cache"
    memory.parts = streaming.parts
    expected = loaded(memory, window=window, block=block, prefetch=0)
    cold, again = opened(DecodedCache(cache)), opened(DecodedCache(cache))

    assert sum(row["label"] in (0.0, 1.0, 0.5) for file in files for row in file) == expected.num_samples
    assert same(loaded(streaming, window=window, block=block, prefetch=0), expected)
    assert same(loaded(cold, window=window, block=block, readers=3), expected)
    assert same(loaded(again, window=window, block=block, batch=4), expected)
    assert again.bad_rows.by_reason == streaming.bad_rows.by_reason == cold.bad_rows.by_reason
    assert again.bad_rows.total == whole.num_rows - expected.num_samples


LIKE = {
    "price": [pa.float64(), pa.float32()],
    "age": [pa.int32(), pa.int64()],
    "colour": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "tags": [pa.list_(pa.string()), pa.large_list(pa.large_string())],
}
"""Types of a column that hold the same values."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(files=files, group=st.integers(1, 5), window=st.integers(1, 40), data=st.data())
def test_files_of_unlike_schemas_in_partitions_give_the_samples_of_one_table(
    tmp_path_factory, files, group, window, data
):
    folder, tables = tmp_path_factory.mktemp("unlike"), []
    for number, content in enumerate(files):
        table = pa.Table.from_pylist(content, schema=KINDS)
        tables.append(table.append_column("day", pa.array([f"d {number}"] * len(content), pa.string())))
        for place, name in enumerate(KINDS.names[1:], start=1):
            table = table.set_column(place, name, table[name].cast(data.draw(st.sampled_from(LIKE[name]))))
        table = table.append_column("more", pa.nulls(len(content)))
        path = folder / f"day=d%20{number}" / "part.parquet"
        path.parent.mkdir()
        table = table.select(data.draw(st.permutations(table.column_names)))
        arrow_parquet.write_table(table, path, row_group_size=group)
    slots = ["age", "colour", "tags", "day"]
    options = {"label": "label", "dense": ["price"], "slots": slots, "multi_valued": ["tags"], "max_bad_rows": 1000}
    memory = as_source(pa.concat_tables(tables), **options)

    streaming = load_data("parquet", path=str(folder), cache=False, **options)
    memory.parts = streaming.parts
    cached = load_data("parquet", path=str(folder), cache=str(folder / ".cache"), **options)

    expected = loaded(memory, window=window, block=3, prefetch=0)
    assert same(loaded(streaming, window=window, block=3, readers=2), expected)
    assert same(loaded(cached, window=window, block=3, readers=2), expected)
    assert same(loaded(cached, window=window, block=3), expected)


@pytest.mark.parametrize(
    ("column", "values", "complaint"),
    [
        ("colour", [["a"], ["b", "c"]], "holds lists"),
        ("age", [1.0, 2.5], "holds double"),
        ("colour", None, "has no column `colour`"),
    ],
)
def test_a_file_whose_columns_are_not_those_of_the_first_is_named(tmp_path, column, values, complaint):
    first = table_of(2)
    place = first.column_names.index(column)
    other = first.drop([column]) if values is None else first.set_column(place, column, pa.array(values))
    arrow_parquet.write_table(first, tmp_path / "0.parquet")
    arrow_parquet.write_table(other, tmp_path / "1.parquet")

    with pytest.raises(DataError, match=complaint) as caught:
        load_data(str(tmp_path), cache=False).read(0, 4)

    assert "1.parquet" in str(caught.value)


def table_of(count: int, *, shift: int = 0) -> pa.Table:
    """Return rows, every 11th of them broken."""
    return pa.table(
        {
            "label": pa.array([None if k % 11 == 5 else k % 2 for k in range(count)], type=pa.float32()),
            "price": [k / 7 + shift for k in range(count)],
            "age": pa.array(range(count), type=pa.int32()),
            "colour": [f"c{k % 17}" for k in range(count)],
            "tags": [["a"] * (k % 3) for k in range(count)],
        }
    )


def written(path: Path, count: int = 500, group: int = 20, *, shift: int = 0) -> Path:
    """Write such rows and return the path."""
    arrow_parquet.write_table(table_of(count, shift=shift), path, row_group_size=group)
    return path


def source_of(path: Path, cache: Path | None = None, **wishes: int) -> FileSource:
    """Open such a file, with a part for each row group."""
    kept = None if cache is None else DecodedCache(cache, **wishes)
    return FileSource(str(path), ParquetDecoder(columns=COLUMNS, rows_per_part=1), cache=kept, max_bad_rows=10_000)


def read_and_written(source: FileSource) -> Batch:
    """Return all samples, once the cache has them, as far as it has room."""
    batch = source.read(0, 500)
    source.settle()
    return batch


@pytest.mark.parametrize("first", [0, 1, 99, 250, 454])
def test_a_run_that_goes_on_in_the_middle_sees_the_very_samples_that_are_left(tmp_path, first):
    path = written(tmp_path / "t.parquet")
    whole = Loader(source_of(path), batch_size=500, block_samples=4, window_samples=100, prefetch=0)
    rest = Loader(
        source_of(path, tmp_path / "cache"), batch_size=13, block_samples=4, window_samples=100, start=first, readers=2
    )

    assert same(concatenate(list(rest)), whole.read(first, 500))


def test_four_readers_of_one_epoch_share_it_whatever_they_take(tmp_path):
    path = written(tmp_path / "t.parquet")
    loaders = [
        Loader(source_of(path, tmp_path / "cache"), batch_size=1, block_samples=4, window_samples=100, prefetch=0)
        for _ in range(4)
    ]
    whole = Loader(source_of(path), batch_size=500, block_samples=4, window_samples=100, prefetch=0).read(0, 500)
    pieces: dict[int, Batch] = {}

    def take(number: int) -> None:
        for first in range(number * 10, 500, 40):
            pieces[first] = loaders[number].read(first, first + 10)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert same(concatenate([pieces[first] for first in sorted(pieces)]), whole)


class Counting(ParquetDecoder):
    """Counts how often a part is decoded."""

    places: list[int] = []  # noqa: RUF012 - of one test

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        self.places.append(first_row)
        return super().decode(file, place, first_row)


def test_each_part_is_decoded_once_an_epoch_where_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.data.files.source.WINDOW_BYTES", 0)  # nothing but what is expected stays in memory
    Counting.places.clear()
    decoder = Counting(columns=COLUMNS, rows_per_part=1)
    source = FileSource(str(written(tmp_path / "t.parquet")), decoder, max_bad_rows=1000)

    loaded(source, window=100, block=4, readers=1)

    assert len(source.parts) == 25
    assert sorted(Counting.places) == list(range(0, 500, 20))


def test_a_file_that_changes_under_a_run_is_an_error_and_no_mixture(tmp_path):
    path = written(tmp_path / "t.parquet")
    source = source_of(path)
    loader = Loader(source, batch_size=50, block_samples=4, window_samples=100, prefetch=0)
    loader.read(0, 50)
    time.sleep(0.01)
    written(path, shift=1)

    with pytest.raises(DataError, match="has changed since it was opened"):
        loader.read_all([(first, first + 50) for first in range(0, 500, 50)])


def test_what_was_decoded_before_a_file_changed_is_still_there_and_the_new_file_is_another(tmp_path):
    path = written(tmp_path / "t.parquet")
    old = source_of(path, tmp_path / "cache")
    before = old.read(0, 500)
    time.sleep(0.01)
    written(path, shift=1)

    assert same(old.read(0, 500), before)
    assert not same(source_of(path, tmp_path / "cache").read(0, 500), before)


def test_a_damaged_part_of_the_cache_is_decoded_anew(tmp_path):
    path = written(tmp_path / "t.parquet")
    expected = read_and_written(source_of(path, tmp_path / "cache"))
    for number, entry in enumerate(sorted((tmp_path / "cache").glob("*.part"))):
        content = bytearray(entry.read_bytes())
        content[-64] ^= 1
        entry.unlink()
        entry.write_bytes(content if number % 2 else content[:-1])

    assert same(read_and_written(source_of(path, tmp_path / "cache")), expected)
    assert all(entry.stat().st_size for entry in (tmp_path / "cache").glob("*.part"))
    assert len(list((tmp_path / "cache").glob("*.part"))) == 25


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_cache_that_holds_little_gives_the_same_samples(tmp_path, share):
    path = written(tmp_path / "t.parquet")
    expected = loaded(source_of(path), window=100, block=4)
    read_and_written(source_of(path, tmp_path / "all"))
    limit = int(share * DecodedCache(tmp_path / "all").num_bytes())

    source = source_of(path, tmp_path / "some", limit_bytes=limit)
    found = loaded(source, window=100, block=4, readers=2)
    source.settle()

    assert same(found, expected)
    assert DecodedCache(tmp_path / "some").num_bytes() <= limit


def test_a_full_disk_is_said_and_reading_goes_on(tmp_path):
    path = written(tmp_path / "t.parquet")
    cache = tmp_path / "cache"
    cache.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", str(cache)], check=False).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.warns(DataWarning, match="takes no more decoded data"):
            found = read_and_written(source_of(path, cache))
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)

    assert same(found, source_of(path).read(0, 500))


class Waiting(DecodedCache):
    """A cache on a disk that takes nothing until it is told to."""

    may_write = threading.Event()

    def put(self, key: str, part: KeptPart) -> bool:
        assert self.may_write.wait(60)
        return super().put(key, part)


def test_a_disk_that_is_slow_is_waited_for_by_nobody_and_what_it_cannot_take_is_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.data.write_behind.MOST_BYTES", 3000)
    Waiting.may_write.clear()
    path = written(tmp_path / "t.parquet")
    expected = source_of(path).read(0, 500)
    slow = FileSource(
        str(path), ParquetDecoder(columns=COLUMNS, rows_per_part=1), cache=Waiting(tmp_path), max_bad_rows=10_000
    )

    assert same(slow.read(0, 500), expected)
    assert not list(tmp_path.glob("*.part"))
    Waiting.may_write.set()
    slow.settle()

    parts = len(list(tmp_path.glob("*.part")))
    assert 0 < parts < 25
    again = source_of(path, tmp_path)
    assert same(again.read(0, 500), expected)
    again.settle()
    assert again._cache.hits >= parts
    assert same(slow.read(0, 500), expected)


@pytest.mark.processes
def test_a_process_that_is_killed_while_it_fills_the_cache_leaves_nothing_wrong(tmp_path):
    path = written(tmp_path / "t.parquet", count=4000, group=80)
    script = f"""
        from pathlib import Path
        from tests.data.test_same_samples import source_of
        source = source_of(Path({str(path)!r}), Path({str(tmp_path / "cache")!r}))
        for first in range(0, 4000, 80):
            source.read(first, first + 1)
            if first < 160:
                source.settle()
            print(first, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as filler:
        assert filler.stdout is not None
        for line in filler.stdout:
            if int(line) >= 800:
                filler.send_signal(signal.SIGKILL)
                break
    assert filler.returncode == -signal.SIGKILL
    assert 0 < len(list((tmp_path / "cache").glob("*.part"))) < 50

    assert same(source_of(path, tmp_path / "cache").read(0, 4000), source_of(path).read(0, 4000))


def test_samples_hashed_for_a_model_are_those_hashed_after_reading(tmp_path):
    path = written(tmp_path / "t.parquet")
    decoder = ParquetDecoder(columns=COLUMNS)
    plain = FileSource(str(path), decoder, max_bad_rows=1000).read(0, 500)
    own = FileSource(str(path), decoder, max_bad_rows=1000, hash_into={"age": 10, "tags": 3}).read(0, 500)
    sizes = np.array([10, 0, 3])[np.repeat(np.tile([0, 1, 2], plain.num_samples), plain.offsets.diff().numpy())]
    expected = np.where(sizes, plain.ids.numpy() % np.maximum(sizes, 1), plain.ids.numpy())

    assert own.ids.tolist() == expected.tolist()


def test_folded_ids_are_those_modulo_a_number_in_half_of_the_bytes(tmp_path):
    path = tmp_path / "t.parquet"
    arrow_parquet.write_table(table_of(330), path, row_group_size=30)
    options = {"label": "label", "dense": ["price"], "slots": ["age", "colour", "tags"], "multi_valued": ["tags"]}
    source = load_data("parquet", path=str(path), cache=str(tmp_path / "cache"), max_bad_rows=330, **options)
    whole, bad = source.read(0, 330), source.bad_rows.total
    folded = source.folded(1 << 20)

    for _ in range(2):  # decoded, then from the cache
        found = folded.read(0, 330)
        assert found.ids.tolist() == (whole.ids % (1 << 20)).tolist()
        assert found.offsets.tolist() == whole.offsets.tolist()
        assert found.labels.tolist() == whole.labels.tolist()
        folded.settle()
        folded = source.folded(1 << 20)
    assert folded._part(0).ids.itemsize == 4
    assert source._part(0).ids.itemsize == 8
    assert source.bad_rows.total == bad > 0
    assert source.read(0, 330).ids.tolist() == whole.ids.tolist()
