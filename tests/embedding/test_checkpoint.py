"""Checkpoints: whole or refused, full or delta, into other shards, beside training, on disks that fail."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from dovetail.embedding import Adagrad, DamagedFileError, StorageError, Table, TableError, shard_of
from tests.embedding.twins import DictTable, assert_same

ONES = np.ones((30, 4), dtype=np.float32)


def trained(tmp_path, num_rows=5, num_keys=30):
    table = Table(width=4, host_rows=num_rows, folder=tmp_path / "rows", segment_bytes=600)
    table.lookup(np.arange(num_keys))
    table.update(np.arange(num_keys), np.ones((num_keys, 4)))
    return table


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["part-00000.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip the first byte", "flip the middle byte", "flip the last byte", "cut", "delete"])
def test_a_damaged_file_is_named_and_never_believed(tmp_path, name, harm):
    with trained(tmp_path) as table:
        path = table.save(tmp_path / "saved").path / name
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif harm == "delete":
        path.unlink()
    else:
        flip(path, {"first": 0, "middle": path.stat().st_size // 2, "last": -1}[harm.split()[2]])
    with pytest.raises(DamagedFileError) as caught:
        Table.load(tmp_path / "saved")
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_a_damaged_cold_row_is_named_and_never_believed(tmp_path, harm):
    with trained(tmp_path) as table:
        segments = sorted((tmp_path / "rows").glob("*/*.segment"))
        assert segments
        for path in segments:
            if harm == "flip":
                for position in range(20, path.stat().st_size, 48):
                    flip(path, position)
            else:
                path.write_bytes(path.read_bytes()[:10])
        with pytest.raises(DamagedFileError, match="segment"):
            table.lookup(np.arange(30))


def test_shards_load_into_another_number_of_shards(tmp_path):
    keys = np.arange(200)
    folders = []
    for shard in range(3):
        mine = keys[shard_of(keys, 3) == shard]
        with Table(width=4, shard=shard, num_shards=3) as table:
            table.update(mine, mine[:, None] * np.ones(4))
            folders.append(table.save(tmp_path / str(shard)).folder)
    model = DictTable(width=4, optimizer=Adagrad())
    model.update(keys.tolist(), (keys[:, None] * np.ones(4)).astype(np.float32))
    for shard in range(2):
        with Table.load(folders, shard=shard, num_shards=2, host_rows=9, folder=tmp_path / "rows") as table:
            mine = np.sort(table.keys())
            assert (shard_of(mine, 2) == shard).all()
            assert len(mine) == (shard_of(keys, 2) == shard).sum()
            assert table.rows(mine).tobytes() == np.array([model.rows[key] for key in mine.tolist()]).tobytes()
    with pytest.raises(TableError, match="0 of 3, 1 of 3"):
        Table.load(folders[:2])


def test_a_delta_holds_what_changed_and_tombstones(tmp_path):
    with trained(tmp_path) as table:
        table.save(tmp_path / "saved")
        table.lookup(np.arange(5))
        table.update([3, 99], ONES[:2])
        gone = table.expire(max_age_steps=1)
        delta = table.save(tmp_path / "saved", kind="delta")

        assert delta.manifest.num_rows == 2
        assert sorted(table.keys().tolist()) == [0, 1, 2, 3, 4, 99]
        assert len(gone) == 25
        rows = table.rows(np.arange(5))
    with Table.load(tmp_path / "saved") as again:
        assert sorted(again.keys().tolist()) == [0, 1, 2, 3, 4, 99]
        assert again.rows(np.arange(5)).tobytes() == rows.tobytes()


def test_a_delta_needs_a_full_checkpoint_of_the_same_table(tmp_path):
    with trained(tmp_path) as table:
        with pytest.raises(TableError, match="no full checkpoint") as caught:
            table.save(tmp_path / "saved", kind="delta")
        assert "full" in caught.value.hint


@pytest.mark.parametrize("path", ["nowhere", "empty"])
def test_a_folder_without_a_checkpoint_says_so(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError) as caught:
        Table.load(tmp_path / path)
    assert "table.save" in caught.value.hint


def test_a_missing_base_is_named(tmp_path):
    with trained(tmp_path) as table:
        full = table.save(tmp_path / "saved")
        table.update([1], ONES[:1])
        table.save(tmp_path / "saved", kind="delta")
    full.path.rename(tmp_path / "elsewhere")
    with pytest.raises(TableError, match="000001-full, which is not there"):
        Table.load(tmp_path / "saved")


def test_a_folder_that_cannot_be_written_is_refused_and_training_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with trained(tmp_path) as table:
        with pytest.raises(StorageError) as caught:
            table.save(tmp_path / "file" / "saved")
        assert caught.value.hint
        table.update(np.arange(30), ONES)
        table.save(tmp_path / "saved")
    with pytest.raises(StorageError):
        Table(width=4, folder=tmp_path / "file" / "rows")


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from dovetail.embedding import StorageError, Table

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
table = Table(width=4, host_rows=100, folder=folder / "rows")
table.update(np.arange(100), np.ones((100, 4)))
table.save(folder / "saved")
before = table.rows(np.arange(100))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for attempt in (lambda: table.save(folder / "saved"), lambda: table.lookup(np.arange(1000, 1090))):
    try:
        attempt()
    except StorageError as error:
        assert "written" in error.message and error.hint
    else:
        raise SystemExit("the disk was not full")
assert (table.rows(np.arange(100)) == before).all()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
table.lookup(np.arange(1000, 1090))
table.save(folder / "saved")
assert (table.rows(np.arange(100)) == before).all()
with Table.load(folder / "saved") as again:
    assert (again.rows(np.arange(100)) == before).all() and len(again) == 190
print("went on")
"""


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "went on\n", done.stderr


@pytest.mark.parametrize("num_batches", [60, pytest.param(6000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_threads_at_once_give_the_rows_of_a_dict(tmp_path, num_batches):
    # Each thread owns some keys, so the outcome does not depend on who comes first; tiers and batches are shared.
    model = DictTable(width=4, optimizer=Adagrad())
    failures = []

    def work(table, number):
        random = np.random.default_rng(number)
        try:
            for _ in range(num_batches):
                keys = random.integers(0, 80, 25) * 4 + number
                table.prefetch(random.integers(0, 320, 25), ahead=2)
                table.lookup(keys)
                table.update(keys, random.normal(size=(25, 4)))
        except BaseException as error:
            failures.append(error)

    with Table(width=4, host_rows=40, folder=tmp_path / "rows", segment_bytes=2000, ageing_lookups=1 << 40) as table:
        threads = [threading.Thread(target=work, args=(table, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        table.save(tmp_path / "saved")
        for _ in range(num_batches // 30):  # checkpoints beside training, all along
            table.save(tmp_path / "saved", kind="delta")
            threads[0].join(0.1)
        for thread in threads:
            thread.join(500)
            assert not thread.is_alive()
        assert not failures
        for number in range(4):
            random = np.random.default_rng(number)
            for _ in range(num_batches):
                keys = (random.integers(0, 80, 25) * 4 + number).tolist()
                random.integers(0, 320, 25)
                model.lookup(keys)
                model.update(keys, random.normal(size=(25, 4)).astype(np.float32))
        assert_same(table, model)
        table.save(tmp_path / "saved", kind="delta")
    with Table.load(tmp_path / "saved", host_rows=7, folder=tmp_path / "rows") as again:
        keys = sorted(model.rows)
        assert again.rows(keys).tobytes() == np.array([model.rows[key] for key in keys]).tobytes()


@pytest.mark.parametrize(("precision", "bits"), [("bfloat16", 7), ("int8", 6.99)])
def test_cold_rows_in_few_bits_are_near_and_right_on_average(tmp_path, precision, bits):
    keys = np.arange(4000)
    with Table(width=8, host_rows=1, folder=tmp_path, cold_precision=precision, seed=1) as table:
        exact = table.lookup(keys)
        cold = table.lookup(keys)
        state = table.rows(keys[:10])[:, 8:]

    error = cold - exact
    largest = np.abs(exact).max(axis=1, keepdims=True)
    assert (np.abs(error) <= largest * 2.0**-bits).all()
    assert np.abs(error).max() > 0
    assert abs(error.mean()) < 4 * np.abs(error).std() / np.sqrt(error.size)
    assert (state == 0).all()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own of 400 kB; skipped where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=100)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=100)


def test_a_full_and_then_read_only_disk_keeps_what_was_acknowledged(tmp_path, small_disk):
    with trained(tmp_path) as table:
        first = table.save(small_disk / "saved")
        rows = table.rows(np.arange(30))
        table.lookup(np.arange(20_000))
        with pytest.raises(StorageError, match="No space left"):
            table.save(small_disk / "saved", kind="delta")
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=100)
        with pytest.raises(StorageError, match="Read-only"):
            table.save(small_disk / "saved")
        assert table.rows(np.arange(30)).tobytes() == rows.tobytes()
    with Table.load(small_disk / "saved") as again:
        assert [entry.name for entry in (small_disk / "saved").iterdir()] == [first.name]
        assert again.rows(np.arange(30)).tobytes() == rows.tobytes()


def test_a_read_only_disk_for_cold_rows_is_refused(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=100)
    with pytest.raises(StorageError, match="Read-only"):
        Table(width=4, folder=small_disk / "rows")
