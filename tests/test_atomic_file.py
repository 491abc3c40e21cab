"""Files that take the place of others: whole or not at all."""

import contextlib
import os
import stat
from pathlib import Path

from dovetail.atomic_file import replace_file, replacing


def test_a_file_takes_the_place_of_another_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    path.write_bytes(b"old")

    replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_where_writing_fails_the_old_one_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    path.write_bytes(b"old")

    with contextlib.suppress(OSError), replacing(path) as file:
        file.write(b"half")
        raise OSError("the disk is full")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_its_users_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "key", b"secret", private=True)

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_durable_file_is_on_disk_before_its_name_and_its_name_after(tmp_path: Path, monkeypatch) -> None:
    path, synced = tmp_path / "facts", []

    def sync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path, path.exists()))

    monkeypatch.setattr(os, "fsync", sync)

    replace_file(path, b"new", durable=True)

    assert synced == [(False, False), (True, True)]
    replace_file(path, b"newer")
    assert len(synced) == 2
