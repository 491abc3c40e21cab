"""Files of a web server: read whole and right however it behaves, in large ranges, and what is wrong is said."""

import gzip
import socket
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
import pytest

from dovetail.data import DataError, Loader, concatenate, load_data
from dovetail.data.files import remote
from dovetail.data.files.opening import find_files, opened
from tests.data.http_files import Manners, served
from tests.data.makers import same

ROWS = 3000
MANNERS = {
    "well": {},
    "without ranges": {"ranges": False},
    "with every third answer an error": {"fails_each": 3},
    "cutting every third body": {"cuts_each": 3},
    "cutting every other body, without ranges": {"ranges": False, "cuts_each": 2},
    "without ranges, every third answer an error": {"ranges": False, "fails_each": 3},
}


@pytest.fixture(autouse=True)
def _in_small_ranges_without_pauses(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(remote, "FIRST_BYTES", 1000)
    monkeypatch.setattr(remote, "RANGE_BYTES", 7000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the same rows in several formats, and as parts of a folder."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("served")
    table = pa.table(
        {
            "label": draw.integers(0, 2, ROWS),
            "price": draw.random(ROWS),
            "shop": draw.integers(0, 1000, ROWS),
            "colour": [f"c{i % 100}" for i in range(ROWS)],
        }
    )
    for number in range(3):
        path = folder / "log" / f"day={number}" / "part.parquet"
        path.parent.mkdir(parents=True)
        arrow_parquet.write_table(table.slice(number * ROWS // 3, ROWS // 3), path, row_group_size=200)
    arrow_parquet.write_table(table, folder / "t.parquet", row_group_size=400)
    arrow_csv.write_csv(table, folder / "t.csv")
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return folder


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz", "t.arrow", "log/day=*/*.parquet"])
@pytest.mark.parametrize("manners", MANNERS)
def test_a_file_is_read_whole_from_a_server_that_behaves(folder, name, manners):
    with served(folder, Manners(**MANNERS[manners])) as address:
        source = load_data(f"{address}/{name}", cache=False)
        found = source.read(0, ROWS)

    assert same(found, load_data(str(folder / name), cache=False).read(0, ROWS))


def test_several_addresses_are_read_ahead_in_training_order(folder, tmp_path):
    with served(folder, Manners(fails_each=7)) as address:
        paths = [f"{address}/log/day={number}/part.parquet" for number in range(3)]
        source = load_data("parquet", path=paths, cache=str(tmp_path / "cache"))
        loader = Loader(source, batch_size=70, block_samples=16, window_samples=900, readers=3)
        found = concatenate(list(loader))

    local = load_data("parquet", path=[str(folder / f"log/day={number}/part.parquet") for number in range(3)])
    assert same(found, concatenate(list(Loader(local, batch_size=70, block_samples=16, window_samples=900))))
    assert [slot.name for slot in source.schema.slots] == ["shop", "colour", "day"]


def test_a_file_is_fetched_once_from_end_to_end_in_ranges_that_are_large(folder):
    manners = Manners()
    with served(folder, manners) as address:
        (file,) = find_files(f"{address}/t.csv")
        with opened(file) as stream:
            assert stream.read() == (folder / "t.csv").read_bytes()

    ranges = sorted(tuple(map(int, each.removeprefix("bytes=").split("-"))) for _, _, each in manners.asked if each)
    size = (folder / "t.csv").stat().st_size
    assert [first for first, _ in ranges] == [0, *(last + 1 for _, last in ranges[:-1])]
    assert ranges[-1][1] == size - 1
    assert {last - first + 1 for first, last in ranges[1:-1]} == {7000}


def test_a_parquet_file_costs_its_columns_that_are_read_and_its_footer_once(folder):
    manners = Manners()
    with served(folder, manners) as address:
        source = load_data("parquet", path=f"{address}/t.parquet", label="label", dense=["price"], cache=False)
        source.read(0, ROWS)

    ranges = [each.removeprefix("bytes=").split("-") for method, _, each in manners.asked if each]
    fetched = sum(int(last) - int(first) + 1 for first, last in ranges)
    groups = arrow_parquet.ParquetFile(folder / "t.parquet").metadata
    columns = [groups.row_group(i).column(j) for i in range(groups.num_row_groups) for j in (0, 1)]
    own = sum(column.total_compressed_size for column in columns)
    assert own <= fetched <= own + 65_536 + groups.num_row_groups * 8192  # between two columns a gap may be fetched too
    assert all(method == "HEAD" or each for method, _, each in manners.asked)


def test_a_file_that_is_not_there_is_named_with_its_address_after_one_try(folder):
    manners = Manners()
    with served(folder, manners) as address:
        with pytest.raises(DataError, match=rf"there is no file `{address}/nothing.csv`"):
            load_data(f"{address}/nothing.csv")
        assert len(manners.asked) < remote.ATTEMPTS  # a connection that was closed meanwhile may cost another
        with pytest.raises(DataError, match="there is no file"):
            load_data(f"{address}/log/*.csv")


def test_what_may_not_be_read_is_said_after_one_try(folder):
    manners = Manners(forbids="t.csv")
    with served(folder, manners) as address, pytest.raises(DataError, match=rf"`{address}/t.csv` may not be read"):
        load_data(f"{address}/t.csv")
    assert len(manners.asked) < remote.ATTEMPTS  # a connection that was closed meanwhile may cost another


def test_a_server_that_only_fails_or_is_not_there_is_an_error_with_its_address_and_the_number_of_tries(folder):
    with served(folder, Manners(fails_each=1)) as address:
        with pytest.raises(DataError, match=rf"`{address}/t.csv` cannot be read: 503.*\(5 times\)") as caught:
            load_data(f"{address}/t.csv")
        assert "server answers" in caught.value.hint
    with socket.create_server(("127.0.0.1", 0)) as bound:
        nobody = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with pytest.raises(DataError, match=rf"`{nobody}/t.csv` cannot be read: Cannot connect.*\(5 times\)"):
        load_data(f"{nobody}/t.csv")


def test_a_server_that_says_nothing_is_waited_for_only_so_long(folder, monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE_S", 0.1)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    with (
        served(folder, Manners(silent_s=2.0)) as address,
        pytest.raises(DataError, match=rf"`{address}/t.csv` cannot be read: .*\(2 times\)"),
    ):
        load_data(f"{address}/t.csv")


@pytest.mark.parametrize("has_tags", [True, False])
def test_a_file_that_changes_on_the_server_is_no_mixture(folder, tmp_path, has_tags):
    path = tmp_path / "t.parquet"
    path.write_bytes((folder / "t.parquet").read_bytes())
    with served(tmp_path, Manners(has_tags=has_tags)) as address:
        source = load_data(f"{address}/t.parquet", cache=False)
        time.sleep(0.01)
        arrow_parquet.write_table(arrow_parquet.read_table(path).slice(0, ROWS - 1), path, row_group_size=400)

        with pytest.raises(DataError, match=rf"`{address}/t.parquet` has changed since it was opened"):
            source.read(0, ROWS)
