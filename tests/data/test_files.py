"""Files: the public TSV format, CSV and Parquet, packed or not, local or not."""

import gzip
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import fsspec
import fsspec.implementations.memory
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
import pytest
import torch

from dovetail.data import Clicks, DataError, DecodedCache, load_data
from dovetail.data.files import Columns, CriteoDecoder, CsvDecoder, FileSource, ParquetDecoder
from dovetail.data.files.decoder import DecodedPart, Decoder
from dovetail.data.files.opening import DataFile
from dovetail.data.files.write import write_parquet
from tests.data.makers import bags_of, criteo_line, same, write_criteo


def test_a_line_becomes_its_label_its_logarithms_and_26_ids(tmp_path):
    integers = ["5", "-2", "", *["0"] * 10]
    path = tmp_path / "day"
    path.write_text("\t".join(["1", *integers, *["0a1b2c3d"] * 25, ""]) + "\n")

    batch = load_data("criteo", path=str(path), cache=False).read(0, 1)

    assert batch.labels.tolist() == [1.0]
    assert batch.dense[0, :4].tolist() == pytest.approx([math.log(6), 0.0, 0.0, 0.0])
    assert len(set(batch.ids.tolist())) == 26  # the same text in unlike slots has unlike ids
    assert batch.offsets.tolist() == list(range(27))


def test_ids_are_stable(tmp_path):
    # Worked out by hand with integers: FNV-1a over the bytes from the slot's salt, then SplitMix64's mixing, 63 bits.
    word = int.from_bytes(hashlib.blake2b(b"0/slot/C1", digest_size=8).digest(), "little")
    for byte in b"68fd1e64":
        word = ((word ^ byte) * 0x100000001B3) % 2**64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    expected = (word ^ (word >> 31)) & (2**63 - 1)
    path = tmp_path / "day"
    path.write_text("\t".join(["0", *["1"] * 13, "68fd1e64", *["ff"] * 25]) + "\n")

    assert load_data("criteo", path=str(path), cache=False).read(0, 1).ids[0] == expected


def test_a_packed_file_holds_what_the_plain_one_holds(tmp_path):
    plain = write_criteo(tmp_path / "day.tsv", 300)
    packed = tmp_path / "day.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    a = load_data("criteo", path=str(plain), cache=False)
    b = load_data("criteo", path=str(packed), cache=False)

    assert same(a.read(0, 300), b.read(0, 300))


def test_a_folder_a_pattern_and_a_list_name_the_same_files_in_order(tmp_path):
    paths = [write_criteo(tmp_path / f"day_{k}.tsv", 20 + k) for k in (2, 0, 1)]
    ways = [str(tmp_path), str(tmp_path / "day_*.tsv"), sorted(str(path) for path in paths)]

    sources = [load_data("criteo", path=way, cache=False) for way in ways]

    assert [source.num_samples for source in sources] == [63, 63, 63]
    assert same(sources[0].read(0, 63), sources[1].read(0, 63))
    assert same(sources[0].read(0, 63), sources[2].read(0, 63))


def test_an_address_of_another_file_system_is_read_in_place(tmp_path):
    plain = write_criteo(tmp_path / "day.tsv", 30)
    remote = fsspec.filesystem("memory")
    remote.pipe("/bucket/day.tsv", plain.read_bytes())
    try:
        source = load_data("criteo", path="memory://bucket/day.tsv", cache=False)
        assert same(source.read(0, 30), load_data("criteo", path=str(plain), cache=False).read(0, 30))
    finally:
        remote.rm("/bucket", recursive=True)


class Shaky(fsspec.implementations.memory.MemoryFileSystem):
    """Another machine whose connection breaks with every third thing that is asked of it, or with all."""

    protocol = "shaky"
    store: dict[str, object] = {}  # noqa: RUF012 - of one test
    asked, breaks_each = 0, 3

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("shaky://", "memory://"))

    def cat_file(self, path, start=None, end=None, **options):
        type(self).asked += 1
        if not self.asked % self.breaks_each:
            raise ConnectionResetError("connection reset by peer")
        return super().cat_file(path, start, end, **options)


@pytest.fixture
def shaky(monkeypatch):
    """Return the file system, asked again without pauses."""
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    monkeypatch.setattr("dovetail.data.files.remote.FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(Shaky, "asked", 2)  # the first thing breaks
    yield fsspec.filesystem("shaky")
    Shaky.store.clear()


@pytest.mark.parametrize("kind", ["plain", "packed", "csv", "parquet"])
def test_a_file_whose_connection_breaks_again_and_again_is_read_whole(tmp_path, kind, shaky, monkeypatch):
    path, decoder = make_file(tmp_path, kind)
    content = Path(path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Shaky, "breaks_each", 1 << 60)
        shaky.pipe(f"/{Path(path).name}", content)

    source = FileSource(f"shaky://{Path(path).name}", decoder, max_bad_rows=100)

    whole = FileSource(str(path), decoder, max_bad_rows=100)
    assert same(source.read(0, source.num_samples), whole.read(0, whole.num_samples))
    assert Shaky.asked > 3


def test_a_connection_that_always_breaks_is_an_error_that_says_how_often_it_was_tried(tmp_path, shaky, monkeypatch):
    content = write_criteo(tmp_path / "day.tsv", 30).read_bytes()
    shaky.pipe("/day.tsv", content)
    monkeypatch.setattr(Shaky, "breaks_each", 1)

    with pytest.raises(DataError, match=r"cannot be read: connection reset by peer \(5 times\)"):
        load_data("criteo", path="shaky://day.tsv", cache=False)


def test_the_last_line_may_lack_its_newline_and_lines_may_end_as_on_windows(tmp_path):
    path = tmp_path / "day"
    path.write_bytes((criteo_line(1, 5) + "\r\n" + criteo_line(1, 5)).encode())

    batch = load_data("criteo", path=str(path), cache=False).read(0, 2)

    assert torch.equal(batch.ids[:26], batch.ids[26:])


@pytest.mark.parametrize("kind", ["plain", "packed", "csv", "parquet"])
def test_parts_read_again_in_any_order_are_those_of_the_first_pass(tmp_path, kind):
    path, decoder = make_file(tmp_path, kind)
    source = FileSource(str(path), decoder)  # 7 parts, of which fewer stay in memory

    whole = source.read(0, 100)

    assert whole.sample_ids.tolist() == list(range(100))
    for first, last in ((90, 100), (5, 40), (0, 1), (15, 17), (50, 50)):
        assert same(source.read(first, last), whole.slice(first, last))


def make_file(folder: Path, kind: str) -> tuple[Path, Decoder]:
    """Write 100 rows in one of the formats and return the file with a decoder that makes parts of 16 rows of it."""
    if kind in ("plain", "packed"):
        path = write_criteo(folder / "day.tsv", 100)
        if kind == "packed":
            path = folder / "day.gz"
            path.write_bytes(gzip.compress((folder / "day.tsv").read_bytes()))
        return path, CriteoDecoder(rows_per_part=16)
    columns = Columns(dense=("price",), slots=("colour",))
    table = pa.table(
        {
            "label": [k % 2 for k in range(100)],
            "price": [k / 7 for k in range(100)],
            "colour": [f"c{k}" for k in range(100)],
        }
    )
    path = folder / f"t.{kind}"
    if kind == "csv":
        arrow_csv.write_csv(table, path)
        return path, CsvDecoder(columns=columns, rows_per_part=16)
    arrow_parquet.write_table(table, path, row_group_size=40)
    return path, ParquetDecoder(columns=columns, rows_per_part=16)


class Counting:
    """The public format's decoder, counting how often a file was read."""

    def __init__(self) -> None:
        self._decoder = CriteoDecoder(rows_per_part=16)
        self.schema, self.identity = self._decoder.schema, self._decoder.identity
        self.num_readings = 0

    def decode(self, file: DataFile, place: int | None = None, first_row: int = 0) -> Iterator[DecodedPart]:
        self.num_readings += 1
        return self._decoder.decode(file, place, first_row)


def test_a_second_opening_reads_the_cache_and_not_the_file(tmp_path):
    path = write_criteo(tmp_path / "day.tsv", 100)
    first = FileSource(str(path), Counting(), cache=DecodedCache(tmp_path / "cache")).read(0, 100)
    decoder = Counting()

    again = FileSource(str(path), decoder, cache=DecodedCache(tmp_path / "cache")).read(0, 100)

    assert decoder.num_readings == 0
    assert same(again, first)


def test_a_cache_without_room_only_costs_time(tmp_path):
    path = write_criteo(tmp_path / "day.tsv", 100)
    decoder = Counting()
    source = FileSource(str(path), decoder, cache=DecodedCache(tmp_path / "cache", limit_bytes=0))

    assert source.read(0, 100).sample_ids.tolist() == list(range(100))
    assert list((tmp_path / "cache").glob("*.part")) == []


def test_a_changed_file_is_decoded_anew(tmp_path):
    path = write_criteo(tmp_path / "day.tsv", 50)
    load_data("criteo", path=str(path), cache=tmp_path / "cache")
    write_criteo(path, 60)

    assert load_data("criteo", path=str(path), cache=tmp_path / "cache").num_samples == 60


def test_csv_and_parquet_of_the_same_table_are_the_same_samples(tmp_path):
    rows = [(1, 0.5, 7, "a", "x|y"), (0, -1.5, 8, "b", ""), (1, 2.0, 9, "", "z")]
    text = ["label,price,age,colour,tags", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(text) + "\n")
    table = pa.table(
        {
            "label": [row[0] for row in rows],
            "price": [row[1] for row in rows],
            "age": [row[2] for row in rows],
            "colour": ["a", "b", None],
            "tags": [["x", "y"], [], ["z"]],
        }
    )
    arrow_parquet.write_table(table, tmp_path / "t.parquet")
    columns = {"dense": ["price"], "slots": ["age", "colour", "tags"], "multi_valued": ["tags"], "cache": False}

    a = load_data("csv", path=str(tmp_path / "t.csv"), **columns).read(0, 3)
    b = load_data("parquet", path=str(tmp_path / "t.parquet"), **columns).read(0, 3)

    assert same(a, b)
    assert [[len(bag) for bag in sample] for sample in bags_of(a)] == [[1, 1, 2], [1, 1, 0], [1, 1, 1]]
    assert a.dense[:, 0].tolist() == [0.5, -1.5, 2.0]


def test_a_written_log_reads_back_with_the_same_numbers_labels_and_ids_up_to_renaming(tmp_path):
    source = Clicks(num_slots=3, num_multi_valued=1, num_dense=2, rows_per_slot=30)
    path = tmp_path / "clicks.parquet"
    assert write_parquet(source, path, num_samples=70_000) == 70_000
    names = [slot.name for slot in source.schema.slots]

    read = load_data(
        "parquet", path=str(path), dense=source.schema.dense, slots=names, multi_valued=["slot3"], cache=False
    )

    made, back = source.read(65_000, 66_000), read.read(65_000, 66_000)  # across a row group's end
    assert torch.equal(back.dense, made.dense)
    assert torch.equal(back.labels, made.labels)
    assert torch.equal(back.offsets, made.offsets)
    pairs = set(zip(made.ids.tolist(), back.ids.tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_quoted_values_may_hold_the_delimiter(tmp_path):
    (tmp_path / "t.csv").write_text('label,colour\n1,"red, green"\n0,"red, green"\n')

    batch = load_data("csv", path=str(tmp_path / "t.csv"), slots=["colour"], cache=False).read(0, 2)

    assert batch.ids[0] == batch.ids[1]


def test_ranges_before_zero_are_refused(tmp_path):
    source = load_data("criteo", path=str(write_criteo(tmp_path / "day", 5)), cache=False)

    with pytest.raises(DataError, match="-1 to 3"):
        source.read(-1, 3)
