"""Copies of a redo log on another server: whatever of it was there before, all of it is there in the end."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dovetail.runtime.messages import Copied, Copy, ReadCopy
from dovetail.runtime.server.redo import copies
from dovetail.runtime.server.redo.copies import CopyKeeper, CopySender, fetch_copy
from dovetail.runtime.server.redo.ring import RING, put_back
from dovetail.transport import Envelope, Refused
from testbed.direct_caller import DirectCaller
from tests.runtime.server.kept import ERA

NAME = "e000003-v0000000000.redo"


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "PART_BYTES", 1000)  # less than a record
    return CopyKeeper(tmp_path / "other" / "redo")


def line_to(keeper):
    """Return a line from server-0 to who keeps its copy."""
    return DirectCaller(keeper.answer, identity=b"server-0")


def copy_all(sender):
    """Send until everything is there; return how many parts that took."""
    for number in range(1000):
        if sender.is_safe:
            return number
        sender.go_on()
    raise AssertionError("it does not come to an end")


def copied(keeper):
    return {path.name: path.read_bytes() for path in keeper._folder.rglob("*.redo")}


def originals(server):
    """Return the files as they would be if the server died now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(server.folder / "redo" / "server-0", Path(name) / "log"))
        put_back(folder, [folder / RING])
        return {path.name: path.read_bytes() for path in folder.glob("*.redo")}


def test_nothing_is_safe_before_all_of_it_is_copied(kept, keeper):
    server = kept()
    sender = CopySender(server.log, line_to(keeper), "server-1")
    for _ in range(3):
        server.push()
        server.commit()
        assert not sender.is_safe
        assert copy_all(sender) > 1
        assert copied(keeper) == originals(server)


def test_files_that_a_checkpoint_made_needless_go_from_the_copy_too(kept, keeper):
    server = kept()
    sender = CopySender(server.log, line_to(keeper), "server-1")
    for step in range(1, 4):
        server.push()
        server.commit()
        server.save()
        copy_all(sender)
        server.log.kept(step)
    server.push()
    copy_all(sender)

    assert list(copied(keeper)) == ["e000003-v0000000003.redo"]


@pytest.mark.parametrize("harm", ["nothing", "gone", "shorter", "longer"])
def test_a_server_that_comes_back_completes_the_copy(kept, keeper, harm):
    server = kept()
    sender = CopySender(server.log, line_to(keeper), "server-1")
    server.push()
    server.commit()
    copy_all(sender)
    (path,) = keeper._folder.rglob("*.redo")
    if harm == "gone":
        path.unlink()
    elif harm != "nothing":
        data = path.read_bytes()
        path.write_bytes(data[:1500] if harm == "shorter" else data + b"more")
    server.die_and_come_back()

    copy_all(CopySender(server.log, line_to(keeper), "server-1"))

    assert copied(keeper) == originals(server)


def test_a_server_without_its_log_comes_back_from_the_copy(kept, keeper):
    server = kept()
    sender = CopySender(server.log, line_to(keeper), "server-1")
    for _ in range(3):
        server.push()
        server.commit()
    copy_all(sender)
    before, files = server.state(), originals(server)
    shutil.rmtree(server.folder / "redo")

    assert fetch_copy(server.log, line_to(keeper), lambda: None)

    assert originals(server) == files
    assert server.die_and_come_back().era == ERA
    assert server.state() == before


def test_a_copy_that_is_not_whole_is_refused(kept, keeper):
    server = kept()
    sender = CopySender(server.log, line_to(keeper), "server-1")
    server.push()
    server.commit()
    for _ in range(4):  # some parts of it
        sender.go_on()
    shutil.rmtree(server.folder / "redo")
    assert fetch_copy(server.log, line_to(keeper), lambda: None)

    assert "was cut short" in server.die_and_come_back().word


def test_where_there_is_no_copy_there_is_nothing_to_fetch(kept, keeper):
    assert not fetch_copy(kept().log, line_to(keeper), lambda: None)


def test_a_server_that_cannot_keep_a_copy_holds_nobody_up(kept, keeper):
    server = kept()
    keeper._folder.parent.write_bytes(b"a file in the way")
    sender = CopySender(server.log, line_to(keeper), "server-1")
    server.push()

    copy_all(sender)

    assert "has no copy on server-1, until the next checkpoint" in server.log.note("server-0").word


@pytest.mark.parametrize("name", ["../../blueprint.json", "e1.redo", "", "/etc/passwd", NAME + "/x"])
def test_only_files_of_a_log_are_kept_and_given_back(keeper, name):
    for message in (Copy(file=name, offset=0, ends=-1, files=()), ReadCopy(file=name, offset=0)):
        answer, _ = keeper.answer(Envelope(b"server-0", 1, message, (np.zeros(3, dtype=np.uint8),)))
        assert isinstance(answer, Refused)
    answer, _ = keeper.answer(Envelope(b"server-0", 1, Copy(file=NAME, offset=5, ends=-1, files=()), ()))
    assert answer == Copied(file=NAME, size=0)
