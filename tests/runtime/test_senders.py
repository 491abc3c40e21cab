"""Whoever has a key of the run says what its role says, in its own name; nothing else is done."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import zmq

from dovetail.runtime.folder import KEYS
from dovetail.runtime.messages import (
    Accepted,
    Alive,
    Commit,
    Died,
    Done,
    Failed,
    Hello,
    Message,
    Pull,
    Push,
    Reduced,
    Saved,
    SaveFailed,
    SaveNow,
    Senders,
    Status,
    Stop,
)
from dovetail.transport import EnvelopeCodec, KeyRing, Refused

SENDERS = Senders(coordinator="coordinator", servers=["server-0", "server-1"], has_ring=False)
DIED = Died(name="server-0", process_id=1, how="killed", comes_back=False)


def accepted(name: str) -> Accepted:
    return Accepted(name=name, generation=1, step=0, task=0, positions=1, samples=1, loss=0.0)


def push(worker: str) -> Push:
    return Push(
        generation=1, step=0, task=0, worker=worker, part=0, tables=(), dense=False, last=True, positions=1, samples=1,
        loss=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sender", "message", "words"),
    [
        ("worker-0", DIED, "Died is not for it to say"),
        ("worker-0", SaveNow(stop=True), "SaveNow is not for it to say"),
        ("server-0", SaveNow(), "server-0 is a server"),
        ("worker-0", accepted("worker-0"), "Accepted is not for it"),
        ("server-1", accepted("server-0"), "in the name of server-0"),
        ("worker-0", Alive(name="worker-1"), "in the name of worker-1"),
        ("worker-0", Hello(role="server", name="worker-0", process_id=1), "says that it is a server"),
        ("server-0", Hello(role="worker", name="server-0", process_id=1), "says that it is a worker"),
        ("worker-0", Hello(role="worker", name="worker-1", process_id=1), "in the name of worker-1"),
        ("launcher", Hello(role="launcher", name="launcher", process_id=1), "Hello is not for it"),
        ("worker-0", Failed(name="server-0", error="x"), "in the name of server-0"),
        ("worker-0", Commit(generation=1, step=0, scale=1, dense_scale=1, factor=1), "Commit is not for it"),
        ("worker-0", Stop(), "Stop is not for it"),
        ("worker-0", Saved(name="worker-0", generation=1, number=1, files={}), "Saved is not for it"),
        ("worker-0", Reduced(name="worker-0", generation=1, step=0), "Reduced is not for it"),
        ("worker-0", Refused(reason="no"), "Refused is not for it"),
    ],
)
def test_the_coordinator_takes_nothing_that_is_not_the_senders_to_say(sender, message, words):
    assert words in str(SENDERS.why_not_to_coordinator(sender, message))


def test_the_coordinator_takes_what_each_has_to_say():
    for sender, message in [
        ("launcher", DIED),
        ("launcher", SaveNow()),
        ("server-1", accepted("server-1")),
        ("worker-7", Alive(name="worker-7")),
        ("joined-5", Hello(role="worker", name="joined-5", process_id=5)),
        ("worker-0", Status()),
    ]:
        assert SENDERS.why_not_to_coordinator(sender, message) is None
    ring = Senders(coordinator="coordinator", servers=["server-0"], has_ring=True)
    failed = SaveFailed(name="worker-0", generation=1, number=1, error="", hint="")
    assert ring.why_not_to_coordinator("worker-0", failed) is None


@pytest.mark.parametrize(
    ("sender", "message", "words"),
    [
        ("worker-0", push("worker-1/7"), "in the name of worker-1/7"),
        ("server-1", push("server-1"), "server-1 is a server"),
        ("launcher", Pull(generation=1, version=0, tables=(), dense=True), "launcher is a launcher"),
        ("worker-0", Commit(generation=1, step=0, scale=1, dense_scale=1, factor=1), "Commit is not for it"),
        ("worker-0", Stop(), "Stop is not for it"),
    ],
)
def test_a_server_takes_nothing_that_is_not_the_senders_to_say(sender, message, words):
    assert words in str(SENDERS.why_not_to_server(sender, message))
    assert SENDERS.why_not_to_server("worker-0", push("worker-0/7")) is None


@contextmanager
def line_of(folder, name, spec, identity):
    """A line with the key of a process, under any routing id."""
    ring = KeyRing(folder / KEYS)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.setsockopt(zmq.IDENTITY, identity)
        client.curve_publickey, client.curve_secretkey = ring.own(name)
        client.curve_serverkey = ring.public(spec.name)
        client.connect(spec.address)
        yield client


def lie(local):
    """Do with the key of a worker what would end the run, or lead it astray; return what is answered to each.

    The run that this is done to is that of `test_strangers.py`.
    """
    codec, blueprint = EnvelopeCodec(Message), local.blueprint
    server = local.report.generation
    worker = local.children["worker-1"].process_id
    done = Done(
        name="worker-1", generation=server, step=0, task=0, samples=10**6, loss=0.0, compute_s=0, fixed_s=0, wait_s=0
    )
    lies = [
        DIED,
        Died(name="worker-1", process_id=worker, how="a lie", comes_back=True),
        SaveNow(stop=True),
        Failed(name="server-0", error="a lie"),
        Hello(role="server", name="server-0", process_id=1, generation=10**6),
        Hello(role="worker", name="worker-1", process_id=1),
        done,
        *(accepted("server-0") for _ in range(3)),
    ]
    answers = []
    for identity in (b"worker-0/lie", b"server-0/lie", b"launcher/1"):
        with line_of(local.folder, "worker-0", blueprint.coordinator, identity) as client:
            for number, message in enumerate(lies, 1):
                client.send_multipart(codec.pack(number, message))
                assert client.poll(60_000), message
                answers.append(codec.unpack(client.recv_multipart()).message)
    keys, ones = np.arange(3, dtype=np.int64), np.ones((3, 1), dtype=np.float32)
    with line_of(local.folder, "worker-0", blueprint.servers[0], b"worker-0/lie") as client:
        forged = msgspec.structs.replace(push(f"worker-1/{worker}"), generation=server, tables=(0,), task=10**6)
        commit = Commit(generation=server, step=local.report.step, scale=9.0, dense_scale=9.0, factor=9.0)
        for number, (message, arrays) in enumerate([(forged, [keys, ones]), (commit, []), (Stop(), [])], 1):
            client.send_multipart(codec.pack(number, message, arrays))
            assert client.poll(60_000), message
            answers.append(codec.unpack(client.recv_multipart()).message)
    return answers
