"""The log of cold rows: damage of any kind is found, wherever the system keeps the file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail.embedding import SGD, Adagrad, DamagedFileError, Table
from dovetail.embedding.tiers.disk.record import RecordLayout
from dovetail.embedding.tiers.disk.tier import DiskTier
from tests.embedding.tiers import read, write
from tests.embedding.twins import DictTable, assert_same


def forget_pages(folder: Path) -> None:
    """Have the system write the files and drop them from its page cache."""
    for path in folder.rglob("*.segment"):
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def test_damage_is_found_in_records_that_left_the_page_cache(tmp_path):
    disk = DiskTier(tmp_path, RecordLayout(width=30, state_width=2), 1 << 20)
    keys = np.arange(5000)
    rows = np.random.default_rng(0).normal(size=(5000, 32)).astype(np.float32)
    places = write(disk, keys, rows)
    forget_pages(tmp_path)
    assert read(disk, keys, places, row_width=32).tobytes() == rows.tobytes()
    some = np.random.default_rng(1).permutation(5000)[:700]
    forget_pages(tmp_path)
    assert read(disk, keys[some], places[some], row_width=32).tobytes() == rows[some].tobytes()

    with next(tmp_path.glob("*/*.segment")).open("r+b") as file:
        file.seek(1234 * disk.record_bytes + 50)
        file.write(b"damage")
    forget_pages(tmp_path)
    with pytest.raises(DamagedFileError, match=r"record 1234 \(key 1234\) has a wrong checksum"):
        read(disk, keys, places, row_width=32)
    forget_pages(tmp_path)
    os.truncate(next(tmp_path.glob("*/*.segment")), 40_000)
    with pytest.raises(DamagedFileError, match="cut short"):
        read(disk, keys, places, row_width=32)
    disk.close()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_any_flipped_bit_of_a_record_is_found(tmp_path, precision):
    disk = DiskTier(tmp_path, RecordLayout(width=3, state_width=2, precision=precision), 1000)
    rows = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    keys = np.array([7, -8])
    places = write(disk, keys, rows)
    before = read(disk, keys, places, row_width=5)
    path = next(tmp_path.glob("*/*.segment"))
    whole = path.read_bytes()

    for bit in range(8 * disk.record_bytes, 16 * disk.record_bytes):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        with path.open("r+b") as file:
            file.write(harmed)
        with pytest.raises(DamagedFileError, match="key -8"):
            read(disk, keys, places, row_width=5)
    path.write_bytes(whole)

    assert read(disk, keys, places, row_width=5).tobytes() == before.tobytes()
    disk.close()


def test_a_file_cut_short_after_it_was_read_is_an_error_and_ends_nothing(tmp_path):
    disk = DiskTier(tmp_path, RecordLayout(width=2, state_width=0), 1 << 20)
    keys = np.arange(9000)
    places = write(disk, keys, np.ones((9000, 2), dtype=np.float32))
    for _ in range(3):  # through the mapping, where the system allows it
        read(disk, keys, places, row_width=2)
    os.truncate(next(tmp_path.glob("*/*.segment")), 5000)

    with pytest.raises(DamagedFileError, match="cut short"):
        read(disk, keys, places, row_width=2)
    disk.close()


CUT_WHILE_READ = """
import os, sys
from pathlib import Path
import numpy as np
from dovetail.embedding.tiers.disk import reads
from dovetail.embedding.tiers.disk.tier import DiskTier
from dovetail.embedding.tiers.disk.record import RecordLayout

disk = DiskTier(Path(sys.argv[1]), RecordLayout(width=2, state_width=0), 1 << 20)
keys = np.arange(9000)
places = disk.write_from(keys, np.ones((9000, 2), dtype=np.float32), np.arange(9000, dtype=np.int32))
addresses = disk.segments.in_memory(look=True).copy()
if not addresses.any():
    print("no mappings here")
    raise SystemExit
os.truncate(disk.segments.path(0), 9000)
rows, slots = np.zeros((9000, 2), dtype=np.float32), np.arange(9000, dtype=np.int32)
how = (places, keys, rows, slots, 2, 2, 0, disk._factors)
failed, why, _ = reads.read_rows(
    disk.segments.descriptors, addresses, disk.segment_records, np.empty(9000, dtype=np.int32), *how
)
print(failed * disk.record_bytes, why == reads.DAMAGED, flush=True)
import mmap, tempfile
file = tempfile.TemporaryFile()
file.write(bytes(8192))
file.flush()
other = mmap.mmap(file.fileno(), 8192)
file.truncate(0)
other[5000]
"""


def test_a_file_cut_short_while_it_is_read_is_a_damaged_record_and_other_faults_stay_what_they_were(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_READ, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    if done.stdout == "no mappings here\n":
        pytest.skip("this system does not say what is in its page cache")

    # Records of 24 bytes: 9000 bytes end on the third page, whose rest reads as zeros.
    assert done.stdout == "9000 True\n", done.stderr
    assert done.returncode == -signal.SIGBUS


def test_rows_that_left_the_page_cache_have_the_same_bits(tmp_path):
    random = np.random.default_rng(3)
    model = DictTable(width=4, optimizer=Adagrad())
    with Table(width=4, host_rows=300, folder=tmp_path, segment_bytes=20_000) as table:
        for step in range(30):
            keys = random.integers(0, 2000, 250)
            gradients = random.normal(size=(250, 4)).astype(np.float32)
            if step % 3:
                forget_pages(tmp_path)
            assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            table.update(keys, gradients)
            model.update(keys.tolist(), gradients)
        assert table.stats().num_fetched > 1000
        assert_same(table, model)


@pytest.mark.parametrize("word", [0, 5])
def test_a_damaged_record_is_found_when_its_segment_is_cleared(tmp_path, word):
    layout = RecordLayout(width=4, state_width=4)
    with Table(width=4, host_rows=10, folder=tmp_path, segment_bytes=4 * layout.words * 20) as table:
        table.lookup(np.arange(200))
        first = min(tmp_path.rglob("*.segment"))
        records = np.fromfile(first, dtype=np.uint32).reshape(-1, layout.words)
        hurt = int(records[3, 0])
        records[3, word] ^= 4
        with first.open("r+b") as file:
            file.write(records.tobytes())

        def change_all_others():
            others = np.setdiff1d(np.arange(200), [hurt])
            for key in np.random.default_rng(0).choice(others, 3000):  # until that segment has the fewest living rows
                table.update([key], np.ones((1, 4)))

        with pytest.raises(DamagedFileError, match=first.name):
            change_all_others()


def test_the_log_stays_within_twice_its_living_rows_and_a_little(tmp_path):
    # The little: the segment being written, a spare one, one being cleared, and the rows of one batch.
    random = np.random.default_rng(1)
    with Table(width=4, host_rows=200, folder=tmp_path, segment_bytes=48 * 128) as table:
        for _ in range(200):
            table.update(random.integers(0, 2000, 150), np.ones((150, 4)))
        stats = table.stats()

        assert stats.disk_rows > 1500
        assert stats.disk_bytes <= (2 * stats.disk_rows + 3 * 128 + 150) * 48
        files = sum(path.stat().st_size for path in tmp_path.rglob("*.segment"))
        assert files <= stats.disk_bytes


def test_bags_in_any_order_take_the_gradients_of_their_keys():
    keys = np.array([1, 2, 3, 1, 2], dtype=np.int64)
    begins, ends = np.array([3, 0]), np.array([5, 2])
    gradients = np.array([[1.0], [10.0]], dtype=np.float32)
    with Table(width=1, optimizer=SGD(learning_rate=1.0), scale=0.0) as table:
        table.update_bags(keys, begins, ends, gradients)

        assert (-table.lookup([1, 2, 3])[:, 0]).tolist() == [11.0, 11.0, 0.0]
        assert len(table) == 3
