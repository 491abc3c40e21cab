"""Thousands of letters, most of them broken, between a live listener and its callers: each is answered or refused."""

from __future__ import annotations

import time
from random import Random

import msgspec
import numpy as np
import pytest
import zmq

from dovetail.transport import Envelope, KeyRing, PeerLost, Refused, WireError
from dovetail.transport.envelope import PREFIX
from tests.runtime.letters import mutated
from tests.transport.makers import Ask, Site, Told, answer_to, make_codec, serving

NUM_LETTERS = pytest.mark.parametrize("num_letters", [3_000, pytest.param(30_000, marks=pytest.mark.slow)])


def random_frames(random: Random) -> list[bytes]:
    """Return the frames of a good envelope, of one with huge claims or wrong types, or of a mutated one."""
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False])]
    good = [bytes(frame) for frame in make_codec().pack(1, Ask("what"), arrays)]
    body = random.choice((["ask", "", 0.0], ["ask", 7, 0.0], ["told", ""], ["refused", ""], ["steal"], [], "ask", None))
    claim = random.choice((["float32", [1 << 40]], ["object", [1]], ["float32", [-1]], ["int8", [2] * 17], [], "x"))
    lane = random.choice((None, ["../x", [0]], ["worker-1-0123456789abcdef.lane", [0]], ["x", None], 5))
    request = random.choice((0, 1, -1, 1 << 63, "1", None))
    odd = [PREFIX + msgspec.msgpack.encode([request, body, [claim] * random.randrange(3), lane]), bytes(8)]
    return random.choice((good, odd, mutated(random, good), mutated(random, odd), [random.randbytes(40)]))


@NUM_LETTERS
def test_a_listener_answers_its_callers_whatever_one_of_them_sends(site: Site, num_letters: int):
    random = Random(5)
    refused, begun_s = 0, time.monotonic()
    with serving(site.listener(lanes=site.lanes), lambda envelope: (Told(getattr(envelope.message, "text", "")), ())):
        good = site.caller(site.ipc, identity=b"worker/good")
        keys = KeyRing(site.keys)
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.sndhwm = client.rcvhwm = 0
            client.setsockopt(zmq.IDENTITY, b"worker/bad")
            client.curve_publickey, client.curve_secretkey = keys.own("worker")
            client.curve_serverkey = keys.public("server")
            client.connect(site.ipc)
            for number in range(num_letters):
                client.send_multipart(random_frames(random))
                assert client.poll(60_000), f"envelope {number} got no answer"
                answer = make_codec().unpack(client.recv_multipart()).message
                refused += isinstance(answer, Refused)
                if number % 500 == 0:
                    assert answer_to(good, Ask("still")).message == Told("still")
        good.close()
        seconds = time.monotonic() - begun_s

    assert num_letters / 2 < refused < num_letters
    assert len(site.log) <= 100 * (1 + seconds / 10)  # and not a line each


@NUM_LETTERS
def test_a_caller_survives_whatever_its_listener_answers(site: Site, num_letters: int):
    random = Random(6)
    listener = site.listener()
    caller = site.caller(site.ipc, lanes=site.lanes)
    outcomes = {"envelope": 0, "wire error": 0}
    for _ in range(num_letters // 5):
        caller.ask(Ask("x"))
        envelope = listener.receive(60)
        assert isinstance(envelope, Envelope)
        listener.socket.send_multipart([envelope.sender, *random_frames(random)])
        listener.reply(envelope, Told("right"))  # whatever came before, the answer itself is not lost
        try:
            answer = caller.receive(60)
            assert answer is not None
            outcomes["envelope"] += 1
        except WireError:
            outcomes["wire error"] += 1
        except PeerLost:
            pytest.fail("the listener is there")
        while caller.socket.poll(0):
            try:
                caller.receive(0)
            except WireError:
                outcomes["wire error"] += 1
        caller.abandon()
    assert answer_after(caller, listener) == Told("after")
    assert min(outcomes.values()) > num_letters // 100
    caller.close()
    listener.close()


def answer_after(caller, listener):
    caller.ask(Ask("after"))
    while (envelope := listener.receive(60)) is not None:
        listener.reply(envelope, Told("after"))
        while (answer := caller.receive(20)) is not None:
            return answer.message
    return None
