"""A redo log that is not what was written, or another's, is found and refused."""

import itertools
import shutil

import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.server.redo.records import BEGIN, Content, RedoDamageError
from tests.runtime.server.kept import ERA


def refused(server):
    """Return why a server came back without its state."""
    back = server.die_and_come_back()
    assert back.era == -1
    assert server.files == []
    return back.word


def test_a_log_of_another_run_or_server_is_refused(kept):
    server, other = kept(), kept(mode="async")
    server.push()
    shutil.rmtree(server.files[0].parent)
    shutil.copytree(other.files[0].parent, server.folder / "redo" / "server-0")

    assert "of another run or server" in refused(server)


def test_a_log_under_another_name_is_refused(kept):
    server = kept()
    server.push()
    server.end()
    server.files[0].rename(server.files[0].with_name("e000004-v0000000000.redo"))

    assert "another time of this run" in refused(server)


def test_a_file_that_is_missing_between_others_is_found(kept):
    server = kept()
    for _ in range(3):
        server.push()
        server.commit()
        server.save(publish=False)
    server.files[1].unlink()

    assert "does not begin where the one before ends" in refused(server)


def test_a_log_without_the_checkpoint_that_it_begins_with_is_refused(kept):
    server = kept()
    server.push()
    shutil.rmtree(checkpoints.folder_of(server.folder, 0))

    assert "no checkpoint that it begins with" in refused(server)


@pytest.fixture
def whole(kept):
    """Return the bytes of a log of two steps, and where its records begin and end."""
    server = kept()
    for _ in range(2):
        server.push()
        server.commit()
    server.end()
    data = server.files[0].read_bytes()
    ends = [BEGIN, *(begin + length for _, _, _, begin, length in Content(server.files[0])._heads)]
    return server, data, ends


def test_a_log_that_was_cut_anywhere_is_found(whole, tmp_path):
    _, data, _ = whole
    path = tmp_path / "cut"
    for size in [*range(0, len(data), 97), *range(len(data) - 64, len(data))]:
        path.write_bytes(data[:size])
        with pytest.raises(RedoDamageError):
            Content(path)


def test_a_flipped_bit_in_any_byte_of_a_log_is_found(whole, tmp_path):
    _, data, ends = whole
    path, draw = tmp_path / "flipped", np.random.default_rng(3)
    heads = [at + offset for at in ends[:-1] for offset in range(56)]
    for at in [*range(BEGIN), *heads, *draw.integers(BEGIN, len(data), 500)]:
        harmed = bytearray(data)
        harmed[at] ^= 1 << draw.integers(8)
        path.write_bytes(harmed)
        with pytest.raises(RedoDamageError):
            Content(path)


def test_records_left_out_twice_or_in_another_order_are_found(whole, tmp_path):
    _, data, ends = whole
    records = [data[begin:end] for begin, end in itertools.pairwise(ends)]
    path = tmp_path / "mixed"
    for order in ([0, 1, 3], [1, 0, 2, 3], [0, 1, 1, 2, 3], [1, 2, 3], [3, 2, 1, 0]):
        path.write_bytes(data[:BEGIN] + b"".join(records[place] for place in order))
        with pytest.raises(RedoDamageError):
            Content(path)


def test_what_follows_the_last_whole_record_is_cut_off(whole):
    server, data, ends = whole
    assert server.die_and_come_back().era == ERA
    before = server.state()
    sizes = np.random.default_rng(1).integers(1, ends[1] - ends[0], 5)
    for size in sizes:  # a part of the sums of another step
        server.files[0].write_bytes(data + data[ends[0] : ends[0] + size])

        assert server.die_and_come_back().era == ERA
        assert server.state() == before
        assert server.files[0].read_bytes() == data
