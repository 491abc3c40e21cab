from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.transport import Channel
from testbed.direct_caller import DirectCaller
from tests.transport.makers import Ask, Site, Told, answer_to, echo, serving

ARRAYS: list[Any] = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(5, dtype=np.float16),
    np.array([0x3F80, 0x4000], dtype=np.uint16),
    np.array([-(2**60), 2**60], dtype=np.int64),
    np.array([1, -2], dtype=np.int32),
    np.array([-1], dtype=np.int8),
    np.array([255], dtype=np.uint8),
    np.array([True, False]),
    np.zeros((0, 7), dtype=np.float32),
    np.array(3.5, dtype=np.float32),
    np.arange(20, dtype=np.float32).reshape(4, 5)[:, ::2],
    np.arange(30_000, dtype=np.int64),
]


def same(left: tuple[Any, ...], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        one.dtype == two.dtype and one.shape == two.shape and (one == two).all()
        for one, two in zip(left, right, strict=True)
    )


def exchange(channel: Channel) -> None:
    for number in range(3):
        envelope = answer_to(channel, Ask(f"n{number}"), ARRAYS)
        assert envelope.message == Told(f"n{number}")
        assert same(envelope.arrays, ARRAYS)
        assert not any(array.flags.writeable for array in envelope.arrays)
        assert all(array.flags.aligned for array in envelope.arrays)
    assert answer_to(channel, Ask()).arrays == ()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "ipc"])
def test_arrays_come_back_through_a_socket(site: Site, address: str):
    with serving(site.listener(site.ipc if address == "ipc" else address)) as listener:
        caller = site.caller(listener.addresses[0])
        exchange(caller)
        caller.close()


def test_arrays_come_back_through_a_direct_call():
    exchange(DirectCaller(echo))


def test_arrays_come_back_through_shared_memory(site: Site):
    with serving(site.listener(lanes=site.lanes)):
        caller = site.caller(site.ipc, lanes=site.lanes)
        exchange(caller)
        assert len(list(site.lanes.iterdir())) == 1
        caller.close()

    assert list(site.lanes.iterdir()) == []


def test_a_listener_serves_all_its_addresses(site: Site):
    with serving(site.listener("tcp://127.0.0.1:*", site.ipc)) as listener:
        callers = [site.caller(address, identity=b"worker/%d" % len(address)) for address in listener.addresses]
        assert [answer_to(caller, Ask("x")).message for caller in callers] == [Told("x")] * 2
        for caller in callers:
            caller.close()


def test_a_message_that_nobody_asked_for_has_number_0(site: Site):
    listener = site.listener()
    caller = site.caller(site.ipc)
    caller.send(Ask("hello"))
    envelope = listener.receive(60)

    assert envelope is not None
    assert listener.send(envelope.sender, Told("news"), [np.ones(2, np.float32)])
    news = caller.receive(60)

    assert news is not None
    assert (news.request, news.message, news.arrays[0].tolist()) == (0, Told("news"), [1.0, 1.0])
    caller.close()
    listener.close()
