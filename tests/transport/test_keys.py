from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from dovetail.transport import KeyRing, KeyRingError, make_keys


def test_keys_are_private_files(tmp_path: Path):
    make_keys(tmp_path / "keys", "worker-0")

    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()}
    assert files == {"worker-0.public": 0o600, "worker-0.secret": 0o600}


def test_the_public_key_belongs_to_the_secret_one(tmp_path: Path):
    make_keys(tmp_path, "a")
    public, secret = KeyRing(tmp_path).own("a")

    assert zmq.curve_public(secret) == public == KeyRing(tmp_path).public("a")


def test_listed_keys_have_names(tmp_path: Path):
    for name in ("a", "b.c"):
        make_keys(tmp_path, name)
    ring = KeyRing(tmp_path)

    assert sorted(ring.allowed().values()) == ["a", "b.c"]
    assert ring.name_of(ring.public("b.c")) == "b.c"
    assert ring.name_of(b"x" * 40) is None


def test_a_key_that_comes_later_is_found(tmp_path: Path):
    ring = KeyRing(tmp_path)
    assert ring.allowed() == {}
    make_keys(tmp_path, "late")

    assert ring.name_of(ring.public("late")) == "late"
    assert ring.allowed() == {ring.public("late"): "late"}


def test_a_file_that_is_no_key_lists_nobody(tmp_path: Path):
    make_keys(tmp_path, "a")
    (tmp_path / "b.public").write_text("hello")

    assert list(KeyRing(tmp_path).allowed().values()) == ["a"]
    with pytest.raises(KeyRingError, match="is not a key") as caught:
        KeyRing(tmp_path).public("b")
    assert "hello" not in str(caught.value)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path):
    make_keys(tmp_path, "a")
    (tmp_path / "a.secret").chmod(0o644)

    with pytest.raises(KeyRingError, match="mode 0644"):
        KeyRing(tmp_path).own("a")


def test_a_missing_key_is_named(tmp_path: Path):
    with pytest.raises(KeyRingError, match=r"a\.secret"):
        KeyRing(tmp_path).own("a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", "x" * 65, "ä"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(KeyRingError, match="cannot name a key"):
        make_keys(tmp_path, name)
