from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.transport import Caller, Refused, WireError
from dovetail.transport.envelope import PREFIX
from tests.transport.makers import Ask, Site, Told, answer_to, make_codec, serving


def header(*envelope: Any) -> bytes:
    """Return a header frame that says whatever the test likes."""
    return PREFIX + msgspec.msgpack.encode(envelope)


ASK = ["ask", "", 0.0]
CLAIM = ["float32", [2]]
BAD = {
    "starts with": [b"HELLO"],
    "version 2": [b"DVTL\x02" + header(1, ASK, [])[5:]],
    "version none": [b"DVTL"],
    "Invalid value 'steal'": [header(1, ["steal"], [])],
    "at least length 2": [header(1, ["refused"], [])],
    "Expected `str`": [header(1, ["ask", 5], [])],
    "makes no sense": [PREFIX],
    "has 1 frames, expected 2": [header(1, ASK, [CLAIM])],
    "has 3 frames, expected 2": [header(1, ASK, [CLAIM]), bytes(8), b""],
    "has 7 bytes, expected 8": [header(1, ASK, [CLAIM]), bytes(7)],
    "claims 4000000000 bytes, the limit is 1073741824": [header(1, ASK, [["float32", [1_000_000_000]]]), bytes(8)],
    "expected 0": [header(1, ASK, [["float32", [0, 1 << 40]]]), bytes(8)],
    "claims 4398046511104 bytes": [header(1, ASK, [["float32", [1 << 20, 1 << 20]]]), bytes(8)],
    "claims 1427247692705959881058285969449495136382746624 bytes": [
        header(1, ASK, [["uint8", [1 << 40, 1 << 40, 1 << 40, 1 << 30]]]),
        bytes(8),
    ],
    "Expected `int` >= 0": [header(1, ASK, [["float32", [-1, -2]]]), bytes(8)],
    "length <= 16": [header(1, ASK, [["float32", [1] * 17]]), bytes(4)],
    "claims the type 'object'": [header(1, ASK, [["object", [1]]]), bytes(8)],
    "bytes other than 0 and 1": [header(1, ASK, [["bool", [2]]]), b"\x01\x02"],
    "not set up here": [header(1, ASK, [CLAIM], ["x-1-0123456789abcdef.lane", [0]])],
    "at `$[0]`": [header(-1, ASK, [])],
}


@pytest.mark.parametrize("words", BAD)
def test_broken_frames_are_told_apart(words: str):
    with pytest.raises(WireError) as caught:
        make_codec().unpack(BAD[words])

    assert words in str(caught.value)


@pytest.mark.parametrize("words", ["Invalid value 'steal'", "has 7 bytes, expected 8", "at least length 2"])
def test_the_number_of_a_broken_letter_is_read_where_it_can(words: str):
    with pytest.raises(WireError) as caught:
        make_codec().unpack(BAD[words])

    assert caught.value.request == 1


@pytest.fixture
def caller(site: Site) -> Iterator[Caller]:
    with serving(site.listener(lanes=site.lanes)):
        caller = site.caller(site.ipc, lanes=site.lanes)
        yield caller
        assert answer_to(caller, Ask("after")).message == Told("after")
        caller.close()


def refusal_of(caller: Caller, *frames: bytes) -> str:
    """Return what the listener says to these frames."""
    caller.socket.send_multipart(frames)
    envelope = caller.receive(60)
    assert envelope is not None
    assert isinstance(envelope.message, Refused)
    return envelope.message.reason


@pytest.mark.parametrize("words", [words for words in BAD if words != "not set up here"])
def test_a_broken_letter_is_answered_logged_and_dropped(site: Site, caller: Caller, words: str):
    caller._awaited.add(1)  # What goes out below is numbered 1 where it has a number.
    caller._last_request = 1

    assert words in refusal_of(caller, *BAD[words])
    assert "worker (key of worker)" in site.wait_for_log(words)


def test_a_call_that_cannot_be_understood_is_answered(site: Site, caller: Caller):
    class Steal(msgspec.Struct, frozen=True, array_like=True, tag="steal"):
        """A message that the server does not know."""

    thief = site.caller(site.ipc, identity=b"worker/thief", codec=type(make_codec())(Steal))
    envelope = answer_to(thief, Steal())

    assert isinstance(envelope.message, Refused)
    assert "Invalid value 'steal'" in envelope.message.reason
    thief.close()


def test_a_version_that_cannot_be_read_answers_the_call_that_waits(site: Site, caller: Caller):
    newer = site.caller(site.ipc, identity=b"worker/newer")
    pack = newer._codec.pack
    newer._codec.pack = lambda *envelope, **options: [b"DVTL\x02", *pack(*envelope, **options)[1:]]  # type: ignore[method-assign]
    envelope = answer_to(newer, Ask())

    assert envelope.message == Refused("a message has protocol version 2, expected 1")
    newer.close()


class TestLanes:
    """References to shared memory that lead somewhere else."""

    NAME = "worker-1-0123456789abcdef.lane"

    def refer(self, caller: Caller, name: str, offset: int = 0, claim: Any = CLAIM) -> str:
        caller._awaited.add(1)
        caller._last_request = 1
        return refusal_of(caller, header(1, ASK, [claim], [name, [offset]]))

    @pytest.mark.parametrize("name", ["../keys/server.secret", "/etc/passwd", "", "a\0b", "..", "x" * 1000])
    def test_a_name_that_is_no_lane_is_refused(self, caller: Caller, name: str):
        assert "is not the name of a lane" in self.refer(caller, name)

    def test_a_lane_that_is_not_there_is_refused(self, caller: Caller):
        assert "No such file" in self.refer(caller, self.NAME)

    def test_the_lane_of_another_process_is_refused(self, site: Site, caller: Caller):
        name = "other-1-0123456789abcdef.lane"
        (site.lanes / name).write_bytes(bytes(8192))
        (site.lanes / name).chmod(0o600)
        assert "is not one of worker" in self.refer(caller, name)

    def test_a_link_out_of_the_folder_is_refused(self, site: Site, caller: Caller):
        (site.lanes / self.NAME).symlink_to("/etc/passwd")
        assert "cannot be opened" in self.refer(caller, self.NAME)

    def test_a_pipe_is_refused(self, site: Site, caller: Caller):
        os.mkfifo(site.lanes / self.NAME, 0o600)
        assert "not a private file" in self.refer(caller, self.NAME)

    def test_a_file_that_others_may_write_is_refused(self, site: Site, caller: Caller):
        (site.lanes / self.NAME).write_bytes(bytes(8192))
        (site.lanes / self.NAME).chmod(0o666)
        assert "not a private file" in self.refer(caller, self.NAME)

    @pytest.mark.parametrize("size", [0, 100, 8191])
    def test_a_file_of_another_size_is_refused(self, site: Site, caller: Caller, size: int):
        (site.lanes / self.NAME).write_bytes(bytes(size))
        (site.lanes / self.NAME).chmod(0o600)
        assert "no lane's size" in self.refer(caller, self.NAME)

    @pytest.mark.parametrize(
        ("offset", "claim"),
        [(4096, CLAIM), (64, ["float32", [1020]]), (0, ["float32", [1 << 40]]), (3, CLAIM), (1 << 47, CLAIM)],
    )
    def test_bytes_outside_the_request_half_are_refused(self, site: Site, caller: Caller, offset: int, claim: Any):
        (site.lanes / self.NAME).write_bytes(bytes(8192))
        (site.lanes / self.NAME).chmod(0o600)
        assert "are outside 0..4096" in self.refer(caller, self.NAME, offset, claim)

    def test_a_lane_that_was_cut_short_is_refused(self, site: Site, caller: Caller):
        array = np.ones(100_000, np.float32)
        assert answer_to(caller, Ask(), [array]).arrays[0].sum() == 100_000
        (lane,) = site.lanes.iterdir()
        name = lane.name
        os.truncate(lane, 4096)

        assert "was cut short" in self.refer(caller, name)
        assert answer_to(caller, Ask(), [array]).arrays[0].sum() == 100_000

    def test_frames_beside_a_lane_are_refused(self, site: Site, caller: Caller):
        (site.lanes / self.NAME).write_bytes(bytes(8192))
        (site.lanes / self.NAME).chmod(0o600)
        caller._awaited.add(1)
        frames = header(1, ASK, [CLAIM], [self.NAME, [0]]), bytes(8)
        assert "has 2 frames, expected 1" in refusal_of(caller, *frames)


def test_what_a_stranger_says_stays_on_one_short_line(site: Site, caller: Caller):
    refusal_of(caller, header(0, ["steal\n" * 1000], []))

    assert "\n" not in site.wait_for_log("steal?steal?")
    assert len(site.log[0]) < 600
