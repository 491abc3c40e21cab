"""The ring through which a redo log is written: whatever is in it when its process dies comes to the file."""

import os
import shutil

import numpy as np
import pytest

from dovetail.runtime.server.redo import ring as redo_ring
from dovetail.runtime.server.redo import writer as redo_file
from dovetail.runtime.server.redo.records import BEGIN, Content, LogFacts, RecordKind, RedoDamageError
from dovetail.runtime.server.redo.ring import END, HEAD, IN_FILE, PAGE, RING, WORD, MappedRing, put_back
from dovetail.runtime.server.redo.writer import RedoFile

NAME = "e000001-v0000000000.redo"


def make(folder, first=0, rings=()):
    facts = LogFacts(run="r", server=0, num_servers=1, era=1, first=first, position=0)
    return RedoFile.make(folder / f"e000001-v{first:010d}.redo", facts, rings)


def append(file, number, size=3000):
    """Append a record of about so many bytes, which are drawn by its number."""
    numbers = np.random.default_rng(number).normal(size=size // 4).astype(np.float32)
    file.append(RecordKind.SUMS, number, 1, {"n": number}, [numbers, np.arange(number % 5)])


def numbers_in(folder):
    """Return the numbers of all records, which must be what was written."""
    found = []
    for path in sorted(folder.glob("*.redo")):
        for record in Content(path).records():
            size = 4 * len(record.arrays[0])
            drawn = np.random.default_rng(record.number).normal(size=size // 4).astype(np.float32)
            assert record.arrays[0].tobytes() == drawn.tobytes()
            found.append(record.number)
    return found


@pytest.fixture(params=["by the thread", "by the server", "past no memory"])
def small(request, monkeypatch):
    """Make rings small, so that they are gone round often."""
    monkeypatch.setattr(redo_file, "SIZE", 4 * PAGE)
    if request.param == "by the server":
        monkeypatch.setattr(redo_ring, "at_once", lambda _: 1 << 40)
    else:
        monkeypatch.setattr(redo_ring, "at_once", lambda _: 1)
    if request.param == "past no memory":
        monkeypatch.setattr(os, "O_DIRECT", 0)


@pytest.mark.parametrize("ends", ["finished", "dies"])
def test_what_was_appended_is_there_however_often_the_ring_was_gone_round(tmp_path, small, ends):
    file = make(tmp_path)
    for number in range(40):
        append(file, number, size=100 + 97 * number)
    data = b"".join(file.bytes_from(at, 5000) for at in range(0, file.size, 5000))
    if ends == "finished":
        file.finish().close()
    file.close()

    put_back(tmp_path, [tmp_path / RING])

    assert numbers_in(tmp_path) == list(range(40))
    assert not (tmp_path / RING).exists()
    assert (tmp_path / NAME).read_bytes()[BEGIN:] == data[BEGIN:]


def test_a_record_larger_than_the_ring_gets_a_larger_one(tmp_path, small):
    file = make(tmp_path)
    for number, size in enumerate([3000, 50_000, 3000, 1_000_000]):
        append(file, number, size)
    file.close()

    put_back(tmp_path, [tmp_path / RING])

    assert numbers_in(tmp_path) == [0, 1, 2, 3]


def test_a_ring_is_in_the_first_place_that_has_ample_room(tmp_path, small):
    (tmp_path / "memory").mkdir()
    elsewhere, beside = tmp_path / "memory" / "server-0.ring", tmp_path / RING
    file = make(tmp_path, rings=(elsewhere, beside))
    append(file, 0)
    assert elsewhere.exists()
    assert not beside.exists()

    elsewhere.with_suffix(redo_ring.DRAFT).mkdir()  # the next one cannot be there
    append(file, 1, 50_000)
    assert beside.exists()
    assert not elsewhere.exists()
    file.close()

    put_back(tmp_path, (elsewhere, beside))

    assert numbers_in(tmp_path) == [0, 1]


def test_a_file_that_was_put_back_goes_on(tmp_path, small):
    for turn in range(5):
        put_back(tmp_path, [tmp_path / RING])
        content = None if turn == 0 else Content(tmp_path / NAME)
        file = make(tmp_path) if content is None else RedoFile.reopen(content.path, content)
        for number in range(3):
            append(file, 3 * turn + number)
        file.close()
    put_back(tmp_path, [tmp_path / RING])

    assert numbers_in(tmp_path) == list(range(15))


class Deaths:
    """Keeps the folder as it is before everything that changes it: as whoever dies there leaves it."""

    def __init__(self, folder, into, monkeypatch):
        self.folder, self._into = folder, into
        self.told = 0
        self.kept = []
        for name in ("pwrite", "ftruncate"):
            self._hook(monkeypatch, os, name)
        for name in ("write", "_mark"):
            self._hook(monkeypatch, MappedRing, name)
        self._hook(monkeypatch, redo_ring.Path, "replace")
        self._hook(monkeypatch, redo_ring.Path, "unlink")

    def _hook(self, monkeypatch, where, name):
        original = getattr(where, name)

        def hooked(*arguments, **named):
            copy = self._into / f"{len(self.kept):05d}"
            shutil.copytree(self.folder, copy)
            self.kept.append((copy, self.told))
            return original(*arguments, **named)

        monkeypatch.setattr(where, name, hooked)


def test_whoever_dies_at_any_moment_leaves_everything_that_was_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(redo_file, "SIZE", 4 * PAGE)
    monkeypatch.setattr(redo_ring, "at_once", lambda _: 1 << 40)  # the server writes: the same moments every time
    folder, into = tmp_path / "log", tmp_path / "dead"
    folder.mkdir()
    into.mkdir()
    with monkeypatch.context() as patch:
        deaths, files = Deaths(folder, into, patch), [make(folder)]
        for number in range(24):
            if number in (6, 12):  # a checkpoint
                files.append(make(folder, first=number))
                files[-1].take(files[-2].finish())
            append(files[-1], number, size=20_000 if number == 9 else 3000)
            deaths.told = number + 1
        for file in files:
            file.close()

    assert len(deaths.kept) > 100
    for dead, told in deaths.kept:
        put_back(dead, [dead / RING])
        numbers = numbers_in(dead)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) - told in (0, 1)
        put_back(dead, [dead / RING])  # whoever dies while it comes back
        assert numbers_in(dead) == numbers


@pytest.fixture
def dead(tmp_path):
    """Return the folder of a log whose process died."""
    file = make(tmp_path)
    for number in range(5):
        append(file, number)
    file.close()
    return tmp_path


def harm(path, at, bit=0):
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_flipped_bit_in_the_head_of_a_ring_is_found(dead):
    for at in [*range(HEAD.size + 4), *range(WORD * IN_FILE, WORD * (END + 1))]:
        for bit in range(8):
            harm(dead / RING, at, bit)
            with pytest.raises(RedoDamageError, match="is damaged"):
                put_back(dead, [dead / RING])
            harm(dead / RING, at, bit)
    put_back(dead, [dead / RING])
    assert numbers_in(dead) == list(range(5))


@pytest.mark.parametrize("at", [BEGIN, BEGIN + 70, 5000, 12_000])
def test_a_record_that_was_damaged_in_the_ring_is_found(dead, at):
    harm(dead / RING, PAGE + at)
    put_back(dead, [dead / RING])

    with pytest.raises(RedoDamageError, match="is damaged after byte"):
        Content(dead / NAME)


def test_a_file_without_its_ring_is_refused(dead):
    (dead / RING).unlink()
    put_back(dead, [dead / RING])

    with pytest.raises(RedoDamageError, match="the end of it is missing"):
        Content(dead / NAME)


@pytest.mark.parametrize("size", [0, 50, PAGE, PAGE + 8])
def test_a_ring_that_was_cut_short_is_refused(dead, size):
    os.truncate(dead / RING, size)

    with pytest.raises(RedoDamageError):
        put_back(dead, [dead / RING])


def test_a_ring_of_another_log_is_refused(dead):
    (dead / NAME).unlink()
    facts = LogFacts(run="another", server=0, num_servers=1, era=1, first=0, position=0)
    RedoFile.make(dead / NAME, facts).close()

    with pytest.raises(RedoDamageError, match="of another log"):
        put_back(dead, [dead / RING])


def test_a_disk_that_fails_behind_the_server_is_an_error_of_the_next_record(tmp_path, small, monkeypatch):
    file = make(tmp_path)
    append(file, 0)
    original = os.pwrite

    def full(descriptor, data, at):
        if at == 0:
            return original(descriptor, data, at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)

    def append_more():
        for number in range(1, 100):
            append(file, number)

    with pytest.raises(OSError, match="No space left"):
        append_more()
    file.close()
