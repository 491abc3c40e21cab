"""While a run goes on, others knock at its ports, and a worker lies: all are refused, and the result is right."""

import contextlib
import socket
import time

import msgspec
import numpy as np
import pytest
import zmq

from dovetail.runtime.folder import KEYS
from dovetail.runtime.messages import Message, Pull, Push
from dovetail.transport import EnvelopeCodec, KeyRing, Refused, make_keys
from dovetail.transport.envelope import PREFIX
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import log_of, make_run, train
from tests.runtime.test_senders import lie

CLAIM = ["float32", [1_000_000_000]]
BAD_FRAMES = {
    "starts with": [b"GET / HTTP/1.1"],
    "version 9": [b"DVTL\x09" + msgspec.msgpack.encode([1, ["Status"], []])],
    "claims 4000000000 bytes": [PREFIX + msgspec.msgpack.encode([1, ["Status"], [CLAIM]]), bytes(8)],
    "Invalid value": [PREFIX + msgspec.msgpack.encode([1, ["Steal"], []])],
    "makes no sense": [PREFIX + b"\xc1\xff"],
}


def knock(address: str, data: bytes) -> None:
    """Send bytes over TCP and leave."""
    host, port = address.removeprefix("tcp://").split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=100) as client:
        time.sleep(0.05)
        client.sendall(data)
        client.settimeout(1)
        client.recv(1024)


@contextlib.contextmanager
def dealer(address, own=None, server_key=None):
    """A ZeroMQ client, with keys or without."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.setsockopt(zmq.IDENTITY, b"worker-0/visitor")
        if own is not None:
            client.curve_publickey, client.curve_secretkey = own
            client.curve_serverkey = server_key
        client.connect(address)
        yield client


def visit(folder, name, address):
    """Do to a port what a stranger could, and what a broken program with good keys could."""
    ring = KeyRing(folder / KEYS)
    make_keys(folder.parent / "foreign", "stranger")
    foreign = KeyRing(folder.parent / "foreign").own("stranger")
    knock(address, b"\x00" * 300)
    knock(address, bytes(range(256)) * 8)
    hello = PREFIX + msgspec.msgpack.encode([1, ["Status"], []])
    for own, key in ((None, None), (foreign, ring.public(name))):
        with dealer(address, own, key) as client:
            client.send(hello)
            assert not client.poll(300), "a stranger got an answer"
    with dealer(address, ring.own("worker-0"), ring.public(name)) as client:
        for frames in BAD_FRAMES.values():
            client.send_multipart(frames)
            assert client.poll(60_000)
            client.recv_multipart()
        if name.startswith("server"):
            misuse(client)


def misuse(client):
    """Send what can be read and makes no sense to a server."""
    codec = EnvelopeCodec(Message)
    keys, values = np.arange(3, dtype=np.int64), np.ones((3, 1), dtype=np.float32)

    def push(tables, arrays, *, dense=False, task=10**6, part=0):
        message = Push(
            generation=1, step=0, task=task, worker="worker-0/1", part=part, tables=tables, dense=dense, last=True,
            positions=1, samples=1, loss=0.0,
        )  # fmt: skip
        return message, arrays

    letters = [
        (Pull(generation=1, version=0, tables=(7,), dense=False), [keys]),
        (Pull(generation=1, version=0, tables=(0, 0), dense=False), [keys]),
        (Pull(generation=1, version=0, tables=(0,), dense=False), [values]),
        push((0,), [keys]),
        push((9,), [keys, values]),
        push((0,), [keys, values[:, :0]]),
        push((0,), [keys.astype(np.float32), values]),
        push((0,), [keys[:2], values]),
        push((), [np.ones(500, dtype=np.float32)], dense=True),
        push((), [np.ones(1, dtype=np.int64)], dense=True),
        push((0,), [keys, values], part=5),
    ]
    for number, (message, arrays) in enumerate(letters, 1):
        client.send_multipart(codec.pack(number, message, arrays))
        assert client.poll(60_000), message
        answer = codec.unpack([frame.buffer for frame in client.recv_multipart(copy=False)])
        assert answer.request == number
        assert isinstance(answer.message, Refused), answer.message


@pytest.mark.parametrize("mode", ["async"])
def test_strangers_nonsense_and_lies_are_refused_and_logged_and_the_run_ends_well(tmp_path, mode):
    over = tmp_path / "over"
    run = make_run(
        model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", samples=40_000, batch=100, servers=2,
        mode=mode,
    )  # fmt: skip
    visited, answers = [], []

    def meanwhile(local, report):
        if report.samples and not visited:
            for spec in (local.blueprint.coordinator, local.blueprint.servers[1]):
                visit(local.folder, spec.name, spec.address)
                visited.append(spec.name)
            answers.extend(lie(local))
            over.touch()

    local = train(run, tmp_path / "run", meanwhile=meanwhile)

    assert visited == ["coordinator", "server-1"]
    assert len(answers) == 33
    assert [answer for answer in answers if not isinstance(answer, Refused)] == []
    assert {name: child.starts for name, child in local.children.items()} == dict.fromkeys(local.children, 1)
    for name in visited:
        log = log_of(tmp_path / "run", name)
        assert "its key is not listed" in log
        assert "does not speak" in log
        for words in BAD_FRAMES:
            assert words in log
    assert_each_sample_counts_once(tmp_path / "run")
