from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.transport import Envelope, WireError
from dovetail.transport.envelope import PREFIX, SharedMemoryReference
from tests.transport.makers import Ask, make_codec

CODEC = make_codec()
ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False]), np.zeros(0, np.int64)]
GOOD = [bytes(frame) for frame in CODEC.pack(7, Ask("what"), ARRAYS)]
IN_LANE = [bytes(frame) for frame in CODEC.pack(7, Ask("what"), ARRAYS, lane=SharedMemoryReference("x", [0, 64, 128]))]


def unpack(frames: list[bytes]) -> None:
    """Unpack what may be anything; only `WireError` may come out of it."""
    with suppress(WireError):
        envelope = CODEC.unpack(frames)
        assert isinstance(envelope, Envelope)
        assert sum(array.nbytes for array in envelope.arrays) == sum(map(len, frames[1:]))


@given(st.lists(st.binary(max_size=100), max_size=4))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_frames_raise_nothing_else(frames: list[bytes]):
    unpack(frames)
    unpack([PREFIX + frames[0], *frames[1:]] if frames else [])


@given(st.data())
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_changed_frames_raise_nothing_else(data: st.DataObject):
    frames = list(data.draw(st.sampled_from([GOOD, IN_LANE])))
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(frames) - 1))
        frame = bytearray(frames[number])
        at = data.draw(st.integers(0, len(frame)))
        match data.draw(st.sampled_from(["set", "cut", "insert", "drop", "repeat"])):
            case "set" if at < len(frame):
                frame[at] = data.draw(st.integers(0, 255))
            case "cut":
                del frame[at:]
            case "insert":
                frame[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "drop" if len(frames) > 1:
                del frames[number]
                continue
            case "repeat":
                frames.append(bytes(frame))
        frames[number] = bytes(frame)
    unpack(frames)


def test_the_frames_that_are_changed_are_good():
    assert CODEC.unpack(GOOD).message == Ask("what")


@pytest.mark.parametrize("packed", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc1"])
def test_headers_that_would_exhaust_a_parser_are_refused(packed: bytes):
    with pytest.raises(WireError):
        CODEC.unpack([PREFIX + packed])
