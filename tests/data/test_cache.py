"""The cache of decoded data: within its limit, shared, and never trusted when damaged."""

import os

import pytest

from dovetail.data import DataError, DecodedCache
from tests.data.makers import make_batch, same

BATCH = make_batch([[[i], [i, i + 1]] for i in range(50)])


def test_what_is_put_comes_back_to_the_bit(tmp_path):
    cache = DecodedCache(tmp_path)
    cache.put("a", BATCH)

    found = DecodedCache(tmp_path).get("a")

    assert found is not None
    assert same(found, BATCH)
    assert cache.get("b") is None


def test_what_was_unused_for_longest_goes_first(tmp_path):
    probe = DecodedCache(tmp_path / "probe")
    probe.put("a", BATCH)
    cache = DecodedCache(tmp_path / "real", limit_bytes=int(2.5 * probe.num_bytes()))
    for age, key in enumerate(("a", "b")):
        cache.put(key, BATCH)
        os.utime(tmp_path / "real" / f"{key}.npz", (1000 + age, 1000 + age))
    assert cache.get("a") is not None  # used just now, so `b` is the older one

    cache.put("c", BATCH)

    assert [cache.get(key) is not None for key in ("a", "b", "c")] == [True, False, True]
    assert cache.num_bytes() <= cache.limit_bytes


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path):
    cache = DecodedCache(tmp_path, limit_bytes=100)
    cache.put("a", BATCH)

    assert cache.get("a") is None
    assert cache.num_bytes() == 0


def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path):
    cache = DecodedCache(tmp_path)
    cache.put("a", BATCH)
    entry = tmp_path / "a.npz"
    entry.write_bytes(entry.read_bytes()[:200])

    assert cache.get("a") is None
    assert not entry.exists()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(DataError, match="cannot be made") as caught:
        DecodedCache(tmp_path / "file" / "below")
    assert "cache=" in caught.value.hint


def test_a_limit_below_zero_is_refused(tmp_path):
    with pytest.raises(DataError, match="-1 bytes"):
        DecodedCache(tmp_path, limit_bytes=-1)
