"""Tables whose folder is kept encrypted: the same rows, and none of their bytes on disk."""

import numpy as np
import pytest

from dovetail.embedding import Adagrad, DamagedFileError, Table
from dovetail.embedding.checkpoints.format import Checkpoint
from dovetail.embedding.tiers.disk.record import RecordLayout
from dovetail.embedding.tiers.disk.tier import DiskTier
from dovetail.encryption import EncryptionError, keep_encrypted, make_key_file
from tests.embedding.tiers import read, write


@pytest.fixture
def places(tmp_path):
    """A folder that is kept encrypted, and one that is not."""
    make_key_file(tmp_path / "a.key")
    keep_encrypted(tmp_path / "kept", tmp_path / "a.key")
    yield {"kept": tmp_path / "kept", "plain": tmp_path / "plain"}
    keep_encrypted(tmp_path / "kept", None)


def trained(folder, seed=0):
    """Return a table that had far more rows than memory, and the rows that it should have."""
    random = np.random.default_rng(seed)
    table = Table(
        width=4, optimizer=Adagrad(), host_rows=64, folder=folder / "cold", segment_bytes=6000, scale=0.1, seed=seed
    )
    for _ in range(40):
        keys = random.choice(600, 50, replace=False) * 1_000_003
        table.update(keys, random.normal(size=(50, 4)).astype(np.float32))
    return table


def all_bytes(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def num_found(rows, data):
    return sum(row.tobytes() in data for row in rows)


def test_rows_are_the_same_and_their_bytes_are_on_disk_only_where_it_is_plain(places):
    keys = np.arange(600) * 1_000_003
    found = {}
    for name, folder in places.items():
        with trained(folder) as table:
            rows = table.lookup(keys, insert=False)
            assert table.stats().disk_rows > 200
            on_disk = all_bytes(folder / "cold")
            table.save(folder / "saved")
            saved = all_bytes(folder / "saved")
        with Table.load(folder / "saved") as again:
            np.testing.assert_array_equal(again.lookup(keys, insert=False), rows)
        found[name] = rows, num_found(rows, on_disk), num_found(rows, saved)

    np.testing.assert_array_equal(found["kept"][0], found["plain"][0])
    assert found["plain"][1] > 200
    assert found["plain"][2] > 500
    assert found["kept"][1:] == (0, 0)


def test_a_record_elsewhere_or_of_another_time_is_refused(tmp_path, places):
    disk = DiskTier(places["kept"], RecordLayout(width=4, state_width=0), 1 << 16)
    random = np.random.default_rng(1)
    keys = np.arange(100)
    numbers = write(disk, keys, random.normal(size=(100, 4)).astype(np.float32))
    path, size = disk.segments.path(0), disk.segments.record_bytes
    whole = path.read_bytes()

    assert size == 4 * (4 + 4) + 28
    read(disk, keys, numbers, row_width=4)
    swapped = whole[size : 2 * size] + whole[:size] + whole[2 * size :]
    for harmed in (swapped, bytes([whole[0] ^ 1]) + whole[1:], whole[: 50 * size] + bytes(size) + whole[51 * size :]):
        path.write_bytes(harmed)
        with pytest.raises(DamagedFileError, match="not what was written there"):
            read(disk, keys, numbers, row_width=4)
    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedFileError, match="cut short"):
        read(disk, keys, numbers, row_width=4)
    disk.close()


def test_what_lay_in_a_segment_before_it_was_written_over_is_refused(places):
    disk = DiskTier(places["kept"], RecordLayout(width=4, state_width=0), 10 * 60)
    rows = np.random.default_rng(2).normal(size=(10, 4)).astype(np.float32)
    keys = np.arange(disk.segment_records)
    first = write(disk, keys, rows[: len(keys)])
    path = disk.segments.path(0)
    old = path.read_bytes()
    write(disk, keys + 100, rows[: len(keys)])  # the first segment is full, and another takes what comes
    disk.release(first)
    disk.segments.drop_dead()
    again = [write(disk, keys, rows[: len(keys)] + turn) for turn in range(3)]
    place = next(each for each in again if each[0] // disk.segment_records == 0)

    read(disk, keys, place, row_width=4)
    path.write_bytes(old)
    with pytest.raises(DamagedFileError, match="not what was written there"):
        read(disk, keys, place, row_width=4)
    disk.close()


def test_parts_of_a_checkpoint_cannot_be_swapped_and_plain_ones_not_slipped_in(places):
    folder = places["kept"] / "saved"
    with trained(places["kept"], seed=3) as table:
        table.save(folder)
        table.update(np.arange(20), np.ones((20, 4), dtype=np.float32))
        table.save(folder, kind="delta")
    first, second = (link.path for link in Checkpoint.newest(folder))
    part = next(second.glob("part-*"))
    own = part.read_bytes()

    part.write_bytes((first / part.name).read_bytes())
    with pytest.raises(DamagedFileError, match="checksum"):
        Table.load(folder)
    part.write_bytes(own)
    manifest = second / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text.split(b" ")[0] + b"\n" + text.partition(b"\n")[2])
    with pytest.raises(EncryptionError, match="written without a key"):
        Table.load(folder)
    head, _, body = text.partition(b"\n")
    harmed = body.replace(b'"base":"000001', b'"base":"000002')
    from dovetail.embedding.checkpoints.format import checksum

    manifest.write_bytes(checksum(harmed).encode() + b" " + head.split(b" ")[1] + b"\n" + harmed)
    with pytest.raises(DamagedFileError, match="not what was written with the key"):
        Table.load(folder)


def test_without_the_key_or_with_another_a_table_is_a_clear_error(places, tmp_path):
    folder = places["kept"]
    with trained(folder) as table:
        table.save(folder / "saved")
    make_key_file(tmp_path / "b.key")

    keep_encrypted(folder, tmp_path / "b.key")
    with pytest.raises(EncryptionError, match="was written with the key"):
        Table.load(folder / "saved")
    keep_encrypted(folder, None)
    with pytest.raises(EncryptionError, match="none is given"):
        Table.load(folder / "saved")
