"""Decoded data kept encrypted: the same samples, and nothing of them in the cache's files."""

import numpy as np
import pytest

from dovetail.data.load import how_made, load_data, open_data
from dovetail.encryption import keep_encrypted, make_key_file


@pytest.fixture
def csv(tmp_path):
    random = np.random.default_rng(5)
    path = tmp_path / "day.csv"
    rows = [f"{random.integers(0, 2)},{random.normal():.5f},{random.integers(0, 9)}" for _ in range(3000)]
    path.write_text("\n".join(["label,price,item", *rows, ""]))
    return path


def all_dense(source):
    batch = source.read(0, source.num_samples)
    return batch.dense.numpy().copy(), batch.ids.numpy().copy()


def test_samples_are_the_same_and_the_cache_holds_none_of_their_bytes(tmp_path, csv):
    make_key_file(tmp_path / "a.key")
    options = {"path": str(csv), "cache": str(tmp_path / "cache"), "dense": ["price"], "slots": ["item"]}
    options |= {"label": "label"}
    plain = load_data("csv", **options)
    dense, ids = all_dense(plain)
    kept = open_data("csv", options, key_file=str(tmp_path / "a.key"))
    for source in (kept, open_data("csv", options, key_file=str(tmp_path / "a.key"))):
        found = all_dense(source)
        np.testing.assert_array_equal(found[0], dense)
        np.testing.assert_array_equal(found[1], ids)
    assert source._cache.hits
    assert how_made(kept)[1] == how_made(plain)[1]

    (folder,) = (tmp_path / "cache").glob("encrypted-*")
    known = dense[100:116].tobytes()
    assert any(known in path.read_bytes() for path in (tmp_path / "cache").glob("*.part"))
    files = [path for path in folder.iterdir() if path.is_file()]
    assert any(path.suffix == ".part" for path in files)
    assert all(path.read_bytes().startswith(b"DOVETAIL-AES-1") for path in files if path.suffix in (".part", ".json"))
    assert not any(known in path.read_bytes() for path in files)

    (tmp_path / "a.key").unlink()  # another key in the same place has a folder of its own
    make_key_file(tmp_path / "a.key")
    np.testing.assert_array_equal(all_dense(open_data("csv", options, key_file=str(tmp_path / "a.key")))[0], dense)
    assert len(list((tmp_path / "cache").glob("encrypted-*"))) == 2
    for each in (tmp_path / "cache").glob("encrypted-*"):
        keep_encrypted(each, None)
