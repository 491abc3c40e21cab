from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
import zmq

from dovetail.transport import (
    CallAbandoned,
    Caller,
    DirectCaller,
    KeyRing,
    Letter,
    Listener,
    ListenError,
    PeerLost,
    WireError,
)
from tests.transport.makers import Ask, Site, Told, echo, make_codec, serving

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def caller(site: Site) -> Iterator[Caller]:
    with serving(site.listener()):
        caller = site.caller(site.ipc)
        yield caller
        caller.close()


def test_a_peer_that_is_not_there_is_named(site: Site):
    caller = site.caller(site.ipc)
    with pytest.raises(PeerLost, match=r"^server did not answer Ask within 0\.1 s") as caught:
        caller.call(Ask(), timeout_s=0.1)

    assert caught.value.peer == "server"
    assert "server" in caught.value.hint
    caller.close()


def test_an_address_that_is_none_is_named(site: Site):
    with pytest.raises(PeerLost, match="server cannot be called at nowhere"):
        site.caller("nowhere")


def test_a_peer_that_comes_later_gets_what_was_sent(site: Site):
    caller = site.caller(site.ipc)
    request = caller.send(Ask("early"))
    with serving(site.listener()):
        letter = caller.receive(5)
    assert letter is not None
    assert (letter.request, letter.message) == (request, Told("early"))
    caller.close()


def test_a_peer_that_takes_nothing_is_lost(site: Site):
    caller = site.caller(site.ipc, most_queued=64)
    for _ in range(64):
        caller.send(Ask())
    with pytest.raises(PeerLost, match="server takes no messages: 64 wait"):
        caller.send(Ask())
    caller.socket.linger = 0
    caller.close()


def test_a_call_that_is_not_wanted_any_more_ends_soon(site: Site):
    caller = site.caller(site.ipc)
    start_s = time.monotonic()
    with pytest.raises(CallAbandoned, match="server"):
        caller.call(Ask(), timeout_s=20, give_up=lambda: time.monotonic() > start_s + 0.1)

    assert time.monotonic() - start_s < 2
    caller.close()


def test_the_answer_to_a_call_that_was_given_up_is_dropped(caller: Caller):
    with pytest.raises(PeerLost):
        caller.call(Ask("late", delay_s=0.2), timeout_s=0.05)

    assert caller.call(Ask("next"), timeout_s=5).message == Told("next")
    assert caller.late_replies == 1


def test_answers_to_abandoned_requests_are_dropped(caller: Caller):
    for _ in range(3):
        caller.send(Ask("old"))
    caller.abandon()
    request = caller.send(Ask("new"))
    letter = caller.receive(5)

    assert letter is not None
    assert (letter.request, letter.message) == (request, Told("new"))


def test_a_call_keeps_other_answers_for_later(caller: Caller):
    first = caller.send(Ask("first"))
    assert caller.call(Ask("second"), timeout_s=5).message == Told("second")
    letter = caller.receive(0)

    assert letter is not None
    assert (letter.request, letter.message) == (first, Told("first"))
    assert caller.receive(0) is None


def test_what_cannot_travel_is_refused_before_it_leaves(caller: Caller):
    with pytest.raises(WireError, match="float64"):
        caller.call(Ask(), [np.zeros(2)], timeout_s=5)
    with pytest.raises(WireError, match="the limit is"):
        make_codec(max_frame_bytes=100).pack(1, Ask(), [np.zeros(26, np.float32)])
    assert caller.call(Ask("x"), timeout_s=5).message == Told("x")


def test_a_reply_to_a_peer_that_left_is_dropped_and_logged(site: Site):
    listener = site.listener()
    caller = site.caller(site.ipc, identity=b"worker-7")
    caller.send(Ask())
    letter = listener.receive(5)
    assert letter is not None
    caller.close()
    deadline_s = time.monotonic() + 5
    while listener.reply(letter, Told()) and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert not listener.send(b"nobody", Told())
    assert any("worker-7 is gone" in line for line in site.log)
    listener.close()


def call_from_elsewhere(folder: Path, address: str, answered: Event) -> None:
    """Call once, as a process of its own, and stay connected."""
    caller = Caller(
        address, codec=make_codec(), keys=KeyRing(folder / "keys"), name="worker", peer="server", identity=b"w"
    )
    caller.call(Ask(), timeout_s=10)
    answered.set()
    time.sleep(60)


def test_a_process_that_comes_back_takes_over_its_name(site: Site):
    spawn = multiprocessing.get_context("spawn")
    answered = spawn.Event()
    with serving(site.listener()):
        old = spawn.Process(target=call_from_elsewhere, args=(site.folder, site.ipc, answered))
        old.start()
        assert answered.wait(15)
        os.kill(old.pid or 0, signal.SIGSTOP)  # Still connected, as a host that hangs would be.
        new = site.caller(site.ipc, identity=b"w")
        assert new.call(Ask("new"), timeout_s=10).message == Told("new")
        new.close()
        os.kill(old.pid or 0, signal.SIGKILL)
        old.join()
        old.close()


def test_nothing_received_is_none(site: Site):
    listener = site.listener()
    assert listener.receive(0) is None
    assert listener.receive(0.01) is None
    listener.close()


def test_an_address_that_is_taken_is_named(site: Site):
    listener = site.listener("tcp://127.0.0.1:*")
    with pytest.raises(ListenError, match=listener.addresses[0]):
        site.listener(listener.addresses[0])
    listener.close()


def test_a_context_has_one_listener(site: Site):
    with zmq.Context() as context:
        listener = site.listener(context=context)
        with pytest.raises(ListenError, match="already has a listener"):
            site.listener("tcp://127.0.0.1:*", context=context)
        listener.close()


def test_what_was_just_sent_arrives_although_the_listener_closes(site: Site):
    listener = site.listener("tcp://127.0.0.1:*")
    caller = site.caller(listener.addresses[0])
    caller.send(Ask())
    letter = listener.receive(5)
    assert letter is not None
    listener.reply(letter, Told(), [np.ones(1 << 20, np.float32)])
    listener.close()
    answer = caller.receive(5)

    assert answer is not None
    assert answer.arrays[0].sum() == 1 << 20
    caller.close()


def say_and_leave(folder: Path, address: str) -> None:
    """Send a last word, as a process that ends right after."""
    caller = Caller(
        address, codec=make_codec(), keys=KeyRing(folder / "keys"), name="worker", peer="server", identity=b"w"
    )
    caller.send(Ask("last words"), [np.ones(1 << 18, np.float32)], one_way=True)
    caller.close()


def test_the_last_word_of_a_process_that_ends_arrives(site: Site):
    listener = site.listener()
    process = multiprocessing.get_context("spawn").Process(target=say_and_leave, args=(site.folder, site.ipc))
    process.start()
    letter = listener.receive(15)
    process.join()
    process.close()
    listener.close()

    assert letter is not None
    assert (letter.message.text, letter.arrays[0].sum()) == ("last words", 1 << 18)


def serve_elsewhere(folder: Path, address: str) -> None:
    """Answer letters, as a process of its own."""
    listener = Listener(
        [address], codec=make_codec(), keys=KeyRing(folder / "keys"), name="server", lanes=folder / "lanes", log=print
    )
    while True:
        letter = listener.receive(1)
        if letter is not None:
            listener.reply(letter, *echo(letter))


def test_a_server_that_is_killed_and_started_again_is_found_again(site: Site):
    spawn = multiprocessing.get_context("spawn")
    caller = site.caller(site.ipc, lanes=site.lanes)
    array = np.arange(100_000, dtype=np.float32)
    for _ in range(2):
        server = spawn.Process(target=serve_elsewhere, args=(site.folder, site.ipc))
        server.start()
        assert (caller.call(Ask("x"), [array], timeout_s=15).arrays[0] == array).all()
        os.kill(server.pid or 0, signal.SIGKILL)
        server.join()
        server.close()
    with pytest.raises(PeerLost, match="server"):
        caller.call(Ask(), [array], timeout_s=0.1)
    caller.socket.linger = 0
    caller.close()


class TestDirectCaller:
    """The channel without a socket behaves like one with."""

    def test_answers_are_kept_in_order(self):
        channel = DirectCaller(echo)
        requests = [channel.send(Ask(text)) for text in "ab"]
        channel.send(Ask("c"), one_way=True)
        letters = [channel.receive(0), channel.receive(0)]

        assert [letter and (letter.request, letter.message) for letter in letters] == [
            (requests[0], Told("a")),
            (requests[1], Told("b")),
        ]
        assert channel.receive(0) is None

    def test_abandoned_answers_are_dropped(self):
        channel = DirectCaller(echo)
        channel.send(Ask())
        channel.abandon()

        assert channel.receive(0) is None

    def test_the_handler_cannot_write_into_what_it_was_given(self):
        def overwrite(letter: Letter) -> tuple[Told, tuple[()]]:
            letter.arrays[0][0] = 1
            return Told(), ()

        with pytest.raises(ValueError, match="read-only"):
            DirectCaller(overwrite).call(Ask(), [np.zeros(2, np.float32)], timeout_s=1)

    def test_a_closed_channel_names_the_peer(self):
        channel = DirectCaller(echo, peer="server-3")
        channel.close()

        with pytest.raises(PeerLost, match="server-3"):
            channel.call(Ask(), timeout_s=1)
