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
    Caller,
    Envelope,
    KeyRing,
    Listener,
    ListenError,
    PeerLost,
    WireError,
)
from testbed.direct_caller import DirectCaller
from tests.transport.makers import Ask, Site, Told, answer_to, echo, make_codec, serving


@pytest.fixture
def caller(site: Site) -> Iterator[Caller]:
    with serving(site.listener()):
        caller = site.caller(site.ipc)
        yield caller
        caller.close()


def test_an_address_that_is_none_is_named(site: Site):
    with pytest.raises(PeerLost, match="server cannot be called at nowhere"):
        site.caller("nowhere")


def test_a_peer_that_comes_later_gets_what_was_sent(site: Site):
    caller = site.caller(site.ipc)
    request = caller.ask(Ask("early"))
    with serving(site.listener()):
        envelope = caller.receive(60)
    assert envelope is not None
    assert (envelope.request, envelope.message) == (request, Told("early"))
    caller.close()


def test_a_peer_that_takes_nothing_is_lost(site: Site):
    caller = site.caller(site.ipc, most_queued=64)
    for _ in range(64):
        caller.send(Ask())
    with pytest.raises(PeerLost, match="server takes no messages: 64 wait"):
        caller.send(Ask())
    caller.socket.linger = 0
    caller.close()


def test_messages_that_need_no_answer_leave_nothing_behind(site: Site):
    listener = site.listener()
    caller = site.caller(site.ipc)
    for number in range(50):
        caller.send(Ask(str(number)))
    letters = [envelope for _ in range(50) if (envelope := listener.receive(60)) is not None]

    assert [envelope.message.text for envelope in letters] == [str(number) for number in range(50)]
    assert {envelope.request for envelope in letters} == {0}
    assert len(caller._awaited) == 0
    caller.close()
    listener.close()


def test_a_request_is_awaited_until_it_is_answered(caller: Caller):
    caller.ask(Ask())
    assert len(caller._awaited) == 1

    assert caller.receive(60) is not None
    assert len(caller._awaited) == 0


def test_a_message_without_an_answer_does_not_disturb_a_question(caller: Caller):
    request = caller.ask(Ask("question"))
    caller.send(Ask("news"))
    letters = [caller.receive(60), caller.receive(60)]

    assert [envelope and (envelope.request, envelope.message) for envelope in letters] == [
        (request, Told("question")),
        (0, Told("news")),
    ]


def test_answers_to_abandoned_requests_are_dropped(caller: Caller):
    for _ in range(3):
        caller.ask(Ask("old"))
    caller.abandon()
    request = caller.ask(Ask("new"))
    envelope = caller.receive(60)

    assert envelope is not None
    assert (envelope.request, envelope.message) == (request, Told("new"))
    assert caller.late_replies == 3


def test_what_cannot_travel_is_refused_before_it_leaves(caller: Caller):
    with pytest.raises(WireError, match="float64"):
        answer_to(caller, Ask(), [np.zeros(2)])
    with pytest.raises(WireError, match="the limit is"):
        make_codec(max_frame_bytes=100).pack(1, Ask(), [np.zeros(26, np.float32)])
    assert answer_to(caller, Ask("x")).message == Told("x")


def test_a_reply_to_a_peer_that_left_is_dropped_and_logged(site: Site):
    listener = site.listener()
    caller = site.caller(site.ipc, identity=b"worker/7")
    caller.ask(Ask())
    envelope = listener.receive(60)
    assert envelope is not None
    caller.close()
    deadline_s = time.monotonic() + 60
    while listener.reply(envelope, Told()) and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert not listener.send(b"nobody", Told())
    assert any("worker/7 is gone" in line for line in site.log)
    listener.close()


def call_from_elsewhere(folder: Path, address: str, answered: Event) -> None:
    """Call once, as a process of its own, and stay connected."""
    caller = Caller(
        address, codec=make_codec(), keys=KeyRing(folder / "keys"), name="worker", peer="server", identity=b"worker"
    )
    answer_to(caller, Ask())
    answered.set()
    time.sleep(600)


def test_a_process_that_comes_back_takes_over_its_name(site: Site):
    spawn = multiprocessing.get_context("spawn")
    answered = spawn.Event()
    with serving(site.listener()):
        old = spawn.Process(target=call_from_elsewhere, args=(site.folder, site.ipc, answered))
        old.start()
        assert answered.wait(60)
        os.kill(old.pid or 0, signal.SIGSTOP)  # Still connected, as a host that hangs would be.
        new = site.caller(site.ipc, identity=b"worker")
        assert answer_to(new, Ask("new")).message == Told("new")
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
    caller.ask(Ask())
    envelope = listener.receive(60)
    assert envelope is not None
    listener.reply(envelope, Told(), [np.ones(1 << 20, np.float32)])
    listener.close()
    answer = caller.receive(60)

    assert answer is not None
    assert answer.arrays[0].sum() == 1 << 20
    caller.close()


def say_and_leave(folder: Path, address: str) -> None:
    """Send a last word, as a process that ends right after."""
    caller = Caller(
        address, codec=make_codec(), keys=KeyRing(folder / "keys"), name="worker", peer="server", identity=b"worker"
    )
    caller.send(Ask("last words"), [np.ones(1 << 18, np.float32)])
    caller.close()


def test_the_last_word_of_a_process_that_ends_arrives(site: Site):
    listener = site.listener()
    process = multiprocessing.get_context("spawn").Process(target=say_and_leave, args=(site.folder, site.ipc))
    process.start()
    envelope = listener.receive(60)
    process.join()
    process.close()
    listener.close()

    assert envelope is not None
    assert (envelope.message.text, envelope.arrays[0].sum()) == ("last words", 1 << 18)


def serve_elsewhere(folder: Path, address: str) -> None:
    """Answer letters, as a process of its own."""
    listener = Listener(
        [address], codec=make_codec(), keys=KeyRing(folder / "keys"), name="server", lanes=folder / "lanes", log=print
    )
    while True:
        envelope = listener.receive(1)
        if envelope is not None:
            listener.reply(envelope, *echo(envelope))


def test_a_server_that_is_killed_and_started_again_is_found_again(site: Site):
    spawn = multiprocessing.get_context("spawn")
    caller = site.caller(site.ipc, lanes=site.lanes)
    array = np.arange(100_000, dtype=np.float32)
    for _ in range(2):
        server = spawn.Process(target=serve_elsewhere, args=(site.folder, site.ipc))
        server.start()
        assert (answer_to(caller, Ask("x"), [array], timeout_s=60).arrays[0] == array).all()
        os.kill(server.pid or 0, signal.SIGKILL)
        server.join()
        server.close()
    caller.ask(Ask(), [array])
    assert caller.receive(0.1) is None
    caller.socket.linger = 0
    caller.close()


class TestDirectCaller:
    """The channel without a socket behaves like one with."""

    def test_answers_are_kept_in_order(self):
        channel = DirectCaller(echo)
        requests = [channel.ask(Ask(text)) for text in "ab"]
        letters = [channel.receive(0), channel.receive(0)]

        assert [envelope and (envelope.request, envelope.message) for envelope in letters] == [
            (requests[0], Told("a")),
            (requests[1], Told("b")),
        ]
        assert channel.receive(0) is None

    def test_abandoned_answers_are_dropped(self):
        channel = DirectCaller(echo)
        channel.ask(Ask())
        channel.abandon()

        assert channel.receive(0) is None

    def test_the_handler_cannot_write_into_what_it_was_given(self):
        def overwrite(envelope: Envelope) -> tuple[Told, tuple[()]]:
            envelope.arrays[0][0] = 1
            return Told(), ()

        with pytest.raises(ValueError, match="read-only"):
            DirectCaller(overwrite).ask(Ask(), [np.zeros(2, np.float32)])

    def test_a_closed_channel_names_the_peer(self):
        channel = DirectCaller(echo, peer="server-3")
        channel.close()

        with pytest.raises(PeerLost, match="server-3"):
            channel.ask(Ask())
