"""The cache of decoded data: within its limit, shared, and never trusted when damaged."""

import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from dovetail.data import Batch, DataError, DecodedCache
from dovetail.data.assembling import assemble
from dovetail.data.cache import KeptPart
from dovetail.data.errors import DataWarning
from dovetail.data.packed import packed
from tests.data.makers import make_batch, same

BATCH = make_batch([[[i], [i, i + 1]] for i in range(50)])
PART = KeptPart(samples=packed(BATCH, num_rows=50, num_slots=2), bad_by_reason={}, bad_examples=())


def whole(part: KeptPart) -> Batch:
    """Return all samples of a part."""
    return assemble(np.arange(part.samples.num_rows), [part.samples], np.zeros(1, dtype=np.int64))


def test_what_is_put_comes_back_to_the_bit(tmp_path):
    cache = DecodedCache(tmp_path)
    assert cache.put("a", PART)

    found = DecodedCache(tmp_path).get("a")

    assert found is not None
    assert same(whole(found), BATCH)
    assert cache.get("b") is None


def test_what_was_unused_for_longest_goes_first(tmp_path):
    probe = DecodedCache(tmp_path / "probe")
    probe.put("a", PART)
    cache = DecodedCache(tmp_path / "real", limit_bytes=int(2.5 * probe.num_bytes()))
    for age, key in enumerate(("a", "b")):
        cache.put(key, PART)
        os.utime(tmp_path / "real" / f"{key}.part", (1000 + age, 1000 + age))
    assert cache.get("a") is not None  # used just now, so `b` is the older one

    cache.put("c", PART)

    assert [cache.get(key) is not None for key in ("a", "b", "c")] == [True, False, True]
    assert cache.num_bytes() <= cache.limit_bytes


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path):
    cache = DecodedCache(tmp_path, limit_bytes=100)

    assert not cache.put("a", PART)
    assert cache.get("a") is None
    assert cache.num_bytes() == 0


def cut(content: bytes) -> bytes:
    """Return the first half."""
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """Return the content with one bit of its last array turned over."""
    place = len(content) - 64
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


DAMAGE = {
    "cut off": cut,
    "one byte too long": lambda content: content + b"x",
    "one bit of the arrays": flipped,
    "one byte of the header": lambda content: content[:60] + b"#" + content[61:],
    "of another program": lambda content: b"PAR1" + content[4:],
    "empty": lambda content: b"",
    "a header that claims to be endless": lambda content: content[:16] + b"\xff" * 8 + content[24:],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_or_foreign_entry_is_a_miss_and_is_removed(tmp_path, kind):
    cache = DecodedCache(tmp_path)
    cache.put("a", PART)
    entry = tmp_path / "a.part"
    content = entry.read_bytes()
    entry.unlink()  # another file, as one that was copied back: what was checked is no longer there
    entry.write_bytes(DAMAGE[kind](content))

    assert cache.get("a") is None
    assert not entry.exists()


def test_a_part_under_the_name_of_another_is_not_taken_for_it(tmp_path):
    cache = DecodedCache(tmp_path)
    cache.put("a", PART)
    (tmp_path / "a.part").rename(tmp_path / "b.part")

    assert cache.get("b") is None


def test_a_part_that_goes_while_it_is_mapped_stays_readable(tmp_path):
    cache = DecodedCache(tmp_path)
    cache.put("a", PART)
    found = cache.get("a")
    (tmp_path / "a.part").unlink()

    assert found is not None
    assert same(whole(found), BATCH)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_said_once_and_is_no_error(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        cache = DecodedCache(tmp_path)
        (tmp_path / "filler").write_bytes(b"x" * (64 << 10))
        with pytest.warns(DataWarning, match="takes no more decoded data: No space left"):
            assert not cache.put("a", PART)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not cache.put("b", PART)

        assert [path.name for path in tmp_path.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.processes
def test_one_process_of_a_host_decodes_a_part_and_one_that_is_killed_lets_go(tmp_path):
    script = f"""
        import time
        from dovetail.data import DecodedCache
        with DecodedCache({str(tmp_path)!r}).decoding("a") as is_first:
            print(is_first, flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        other.kill()
        with DecodedCache(tmp_path).decoding("a") as is_first:
            held = is_first

    assert held in (True, False)  # it is dead, so nobody waits for long
    with DecodedCache(tmp_path).decoding("a") as is_first:
        assert is_first


def test_drafts_of_killed_processes_are_swept(tmp_path):
    draft = tmp_path / ".a.part.123.456"
    draft.write_bytes(b"half")
    os.utime(draft, (1000, 1000))
    young = tmp_path / ".b.part.123.456"
    young.write_bytes(b"half")

    DecodedCache(tmp_path)

    assert not draft.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(DataError, match="cannot be made") as caught:
        DecodedCache(tmp_path / "file" / "below")
    assert "cache=" in caught.value.hint


def test_a_limit_below_zero_is_refused(tmp_path):
    with pytest.raises(DataError, match="-1 bytes"):
        DecodedCache(tmp_path, limit_bytes=-1)
