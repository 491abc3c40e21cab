from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dovetail.transport import Caller, Envelope, WireError, sweep
from dovetail.transport.shared_memory import SharedMemoryFiles, make_shared_memory
from tests.transport.makers import Ask, Site, Told, answer_to, echo, serving

LARGE = np.arange(50_000, dtype=np.float32)


class Ways:
    """Answers letters, and notes which came through shared memory."""

    def __init__(self) -> None:
        self.requests: list[bool] = []

    def __call__(self, envelope: Envelope) -> Any:
        # An array in a frame is over that frame's memoryview, one in a lane over the map.
        self.requests += [type(array.base).__name__ == "mmap" for array in envelope.arrays]
        return echo(envelope)


@pytest.fixture
def ways(site: Site) -> Iterator[Ways]:
    ways = Ways()
    with serving(site.listener(lanes=site.lanes), ways):
        yield ways


def came_by_lane(envelope: Envelope) -> list[bool]:
    return [type(array.base).__name__ == "mmap" for array in envelope.arrays]


def test_large_arrays_go_through_the_lane_and_small_ones_do_not(site: Site, ways: Ways):
    caller = site.caller(site.ipc, lanes=site.lanes)
    answers = [answer_to(caller, Ask(), [array]) for array in (LARGE, LARGE[:10])]

    assert ways.requests == [True, False]
    assert [came_by_lane(answer) for answer in answers] == [[True], [False]]
    caller.close()


def test_a_small_question_may_have_a_large_answer(site: Site):
    with serving(site.listener(lanes=site.lanes), lambda envelope: (Told(), [LARGE])):
        caller = site.caller(site.ipc, lanes=site.lanes)
        answer = answer_to(caller, Ask())
        assert came_by_lane(answer) == [True]
        assert (answer.arrays[0] == LARGE).all()
        caller.close()


def test_a_lane_too_small_is_passed_by(site: Site, ways: Ways):
    caller = site.caller(site.ipc, lanes=site.lanes, lane_bytes=LARGE.nbytes // 2)
    answer = answer_to(caller, Ask(), [LARGE])

    assert (ways.requests, came_by_lane(answer)) == ([False], [False])
    assert (answer.arrays[0] == LARGE).all()
    assert answer_to(caller, Ask(), [LARGE[:10_000]]).arrays[0].sum() == LARGE[:10_000].sum()
    assert ways.requests == [False, True]
    caller.close()


def test_a_full_file_system_is_passed_by(site: Site, ways: Ways, monkeypatch: pytest.MonkeyPatch):
    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    caller = site.caller(site.ipc, lanes=site.lanes)
    answer = answer_to(caller, Ask(), [LARGE])

    assert (ways.requests, came_by_lane(answer)) == ([False], [False])
    assert (answer.arrays[0] == LARGE).all()
    caller.close()


def test_a_lane_larger_than_the_file_system_is_not_made(site: Site):
    assert make_shared_memory(site.lanes, "worker", 1 << 60) is None
    assert make_shared_memory(site.folder / "missing", "worker", 4096) is None


def test_a_lane_takes_no_space_before_it_is_used(site: Site):
    lane = make_shared_memory(site.lanes, "worker", 1 << 26)
    assert lane is not None
    path = site.lanes / lane.name
    assert (path.stat().st_size, path.stat().st_blocks) == (1 << 27, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_request_before_the_answer_goes_inline(site: Site, ways: Ways):
    caller = site.caller(site.ipc, lanes=site.lanes)
    for number in range(3):
        caller.ask(Ask(str(number)), [LARGE + number])
    sums = [envelope.arrays[0].sum() for _ in range(3) if (envelope := caller.receive(60))]

    assert ways.requests == [True, False, False]
    assert sums == [(LARGE + number).sum() for number in range(3)]
    caller.close()


def test_the_lane_of_an_abandoned_request_is_not_used_again(site: Site, ways: Ways):
    caller = site.caller(site.ipc, lanes=site.lanes)
    answer_to(caller, Ask(), [LARGE])
    before = set(site.lanes.iterdir())
    caller.ask(Ask(delay_s=0.2), [LARGE])
    caller.abandon()
    answer = answer_to(caller, Ask(), [LARGE * 2])

    assert (answer.arrays[0] == LARGE * 2).all()
    assert before.isdisjoint(site.lanes.iterdir())
    assert (ways.requests, caller.late_replies) == ([True] * 3, 1)
    caller.close()


def test_a_listener_without_lanes_says_so(site: Site):
    with serving(site.listener()):
        caller: Caller = site.caller(site.ipc, lanes=site.lanes)
        answer = answer_to(caller, Ask(), [LARGE])
        assert "not set up here" in answer.message.reason
        caller.close()


def test_callers_have_lanes_of_their_own(site: Site, ways: Ways):
    callers = [site.caller(site.ipc, lanes=site.lanes, identity=b"worker/%d" % number) for number in range(4)]
    for number, caller in enumerate(callers):
        caller.ask(Ask(), [LARGE * number])
    for number, caller in enumerate(callers):
        envelope = caller.receive(60)
        assert envelope is not None
        assert (envelope.arrays[0] == LARGE * number).all()
        caller.close()
    assert ways.requests == [True] * 4


def test_a_shelf_keeps_few_lanes_and_none_that_were_removed(site: Site):
    lanes = [lane for _ in range(4) if (lane := make_shared_memory(site.lanes, "worker", 4096))]
    shelf = SharedMemoryFiles(site.lanes, most=2)
    first = shelf.find(lanes[0].name, "worker")
    assert shelf.find(lanes[0].name, "worker") is first
    shelf.find(lanes[1].name, "worker")
    shelf.find(lanes[2].name, "worker")
    assert shelf.find(lanes[0].name, "worker") is not first

    (site.lanes / lanes[0].name).unlink()
    shelf.find(lanes[3].name, "worker")
    with pytest.raises(WireError, match="No such file"):
        shelf.find(lanes[0].name, "worker")
    shelf.close()


def test_views_outlive_the_shelf(site: Site):
    lane = make_shared_memory(site.lanes, "worker", 1 << 20)
    assert lane is not None
    offsets = lane.place([LARGE])
    assert offsets is not None
    shelf = SharedMemoryFiles(site.lanes)
    from dovetail.transport.arrays import claims_of

    (view,) = shelf.find(lane.name, "worker").views(claims_of([LARGE], 1 << 30), offsets)
    shelf.close()
    assert (view == LARGE).all()


def test_lanes_of_dead_processes_are_swept_whatever_their_process_ids(site: Site):
    # Of a living process in a container, whose id means nothing here, and of one whose id somebody else has now.
    living = make_shared_memory(site.lanes, "worker", 4096)
    assert living is not None
    dead = f"worker-0-{os.getpid()}-0123456789abcdef.lane"
    for name in (dead, "notes.lane"):
        (site.lanes / name).touch()

    assert sweep(site.lanes) == [dead]
    assert sorted(path.name for path in site.lanes.iterdir()) == ["notes.lane", living.name]
    name = living.name
    del living
    assert sweep(site.lanes) == [name]
