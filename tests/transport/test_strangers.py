from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from dovetail.transport import KeyRing, Listener, make_keys
from dovetail.transport.rate_limited_log import QUIET_S
from tests.transport.makers import Ask, Site, Told, answer_to, is_refused, make_codec, serving, wait_for


@contextmanager
def served(site: Site, **options: Any) -> Iterator[Listener]:
    """A listener with a good caller, who is served before and after whatever the test does."""
    with serving(site.listener("tcp://127.0.0.1:*", site.ipc, **options)) as listener:
        caller = site.caller(listener.addresses[0])
        try:
            assert answer_to(caller, Ask("before")).message == Told("before")
            yield listener
            assert answer_to(caller, Ask("after")).message == Told("after")
        finally:
            caller.close()


@contextmanager
def dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    """A plain ZeroMQ client."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(address)
        yield client


def visit(address: str, data: bytes, *, stay: bool = True, pause_s: float = 0.05) -> None:
    """Send bytes over TCP, and wait for the other side to hang up."""
    host, port = address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        time.sleep(pause_s)  # Who is thrown out in the moment it connects leaves no address.
        client.sendall(data)
        try:
            while stay and client.recv(1024):
                pass
        except ConnectionResetError:
            pass


def test_a_process_whose_key_is_not_listed_is_refused(site: Site):
    make_keys(site.folder / "foreign", "worker")
    (site.folder / "foreign" / "server.public").write_bytes((site.keys / "server.public").read_bytes())
    with served(site) as listener:
        stranger = site.caller(
            listener.addresses[0], keys=KeyRing(site.folder / "foreign"), identity=b"worker/stranger"
        )
        stranger.send(Ask("let me in"))

        assert "127.0.0.1" in site.wait_for_log("its key is not listed")
        assert listener.refusals["unknown key"] >= 1
        stranger.close()


def test_whoever_was_refused_is_let_in_once_its_key_is_listed(site: Site):
    make_keys(site.folder / "foreign", "worker")
    (site.folder / "foreign" / "server.public").write_bytes((site.keys / "server.public").read_bytes())
    with served(site, handshake_s=1.0) as listener:
        stranger = site.caller(listener.addresses[0], keys=KeyRing(site.folder / "foreign"), identity=b"stranger")
        stranger.send(Ask("let me in"))
        site.wait_for_log("its key is not listed")
        (site.folder / "foreign" / "worker.public").rename(site.keys / "stranger.public")

        envelope = stranger.receive(60)
        assert envelope is not None
        assert envelope.message == Told("let me in")
        stranger.close()


def test_a_key_that_is_listed_later_is_accepted(site: Site):
    with served(site) as listener:
        make_keys(site.keys, "late")
        caller = site.caller(listener.addresses[0], name="late", identity=b"late")

        assert answer_to(caller, Ask("x")).message == Told("x")
        caller.close()


def test_a_client_without_encryption_is_refused(site: Site):
    with served(site) as listener, dealer(listener.addresses[0]) as client:
        client.send(b"hello")

        # Both sides see that they do not match; where the client hangs up first, all we know is that it did.
        assert "127.0.0.1:" in site.wait_for_log("refused")
        assert listener.refusals["no encryption"] + listener.refusals["broken handshake"] >= 1


def test_a_client_without_encryption_is_refused_at_a_unix_socket(site: Site):
    with served(site), dealer(site.ipc) as client:
        client.send(b"hello")

        line = site.wait_for_log("refused")
        assert f"process {os.getpid()}" in line or site.ipc in line


def test_a_client_with_the_key_of_another_server_is_refused(site: Site):
    make_keys(site.folder / "other", "server")
    other = site.folder / "other"
    for name in ("worker.public", "worker.secret"):
        (other / name).write_bytes((site.keys / name).read_bytes())
        (other / name).chmod(0o600)
    with served(site) as listener:
        caller = site.caller(listener.addresses[0], keys=KeyRing(other), identity=b"worker/lost")
        caller.send(Ask())

        site.wait_for_log("another key of this process")
        caller.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak our protocol"),
        (b"\x16\x03\x01" + b"\x00" * 300, "does not speak our protocol"),
        (b"\x05abcd", "does not speak our protocol"),
        (b"\xff" + bytes(range(200)), "refused 127.0.0.1:"),
    ],
)
@pytest.mark.parametrize("stay", [True, False])
def test_bytes_that_are_not_our_protocol_are_refused(site: Site, data: bytes, words: str, stay: bool):
    with served(site) as listener:
        visit(listener.addresses[0], data, stay=stay)

        site.wait_for_log("127.0.0.1:" if not stay else words)


def test_random_bytes_do_no_harm(site: Site):
    with served(site) as listener:
        for _ in range(50):
            visit(listener.addresses[0], os.urandom(200), stay=False, pause_s=0)
        site.wait_for_log("127.0.0.1:")


def test_who_only_connects_and_leaves_is_written_down(site: Site):
    with served(site) as listener:
        visit(listener.addresses[0], b"", stay=False)

        site.wait_for_log("handshake failed or was never finished")


def test_a_stranger_who_keeps_coming_gets_one_line(site: Site):
    begun_s = time.monotonic()
    with served(site) as listener:
        for _ in range(20):
            visit(listener.addresses[0], b"GET / HTTP/1.1\r\n\r\n", pause_s=0.02)
        wait_for(lambda: listener.refusals["not a peer"] == 20)

        assert listener.refusals["not a peer"] == 20
        assert 1 <= len(site.log) <= 1 + (time.monotonic() - begun_s) / QUIET_S


def test_ordinary_ends_are_not_written_down(site: Site):
    with served(site) as listener:
        for number in range(5):
            caller = site.caller(listener.addresses[number % 2], identity=b"worker/%d" % number)
            assert answer_to(caller, Ask("x")).message == Told("x")
            caller.close()

    assert site.log == []
    assert listener.refusals == {}


def test_a_frame_above_the_limit_ends_the_connection(site: Site):
    with served(site, max_frame_bytes=100_000) as listener, dealer_with_keys(site, listener) as client:
        client.send(b"\0" * 200_000)

        assert "127.0.0.1:" in site.wait_for_log("a frame above 100000 bytes")


@contextmanager
def dealer_with_keys(site: Site, listener: Listener) -> Iterator[zmq.Socket[bytes]]:
    """A ZeroMQ client that may come in, and sends what it likes."""
    keys = KeyRing(site.keys)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.curve_publickey, client.curve_secretkey = keys.own("worker")
        client.curve_serverkey = keys.public("server")
        client.connect(listener.addresses[0])
        yield client


def test_without_its_gate_a_listener_lets_nobody_in(site: Site):
    listener = site.listener()
    assert listener._authenticator is not None
    listener._authenticator.close()
    listener._authenticator = None
    caller = site.caller(site.ipc)
    caller.send(Ask())

    assert listener.receive(0.3) is None
    caller.socket.linger = 0
    caller.close()
    listener.close()


@contextmanager
def impostor(site: Site, listener: Listener, routing_id: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A process of the run, with a key of its own, under a routing id that it chose itself."""
    make_keys(site.keys, "impostor")
    keys = KeyRing(site.keys)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.setsockopt(zmq.IDENTITY, routing_id)
        client.curve_publickey, client.curve_secretkey = keys.own("impostor")
        client.curve_serverkey = keys.public("server")
        client.connect(listener.addresses[0])
        yield client


@pytest.mark.parametrize("routing_id", [b"worker", b"worker/1", b"worker/1#0123456789abcdef", b"#impostor", b"\xff/x"])
def test_a_process_that_calls_under_the_name_of_another_is_refused(site: Site, routing_id: bytes):
    with served(site) as listener, impostor(site, listener, routing_id) as client:
        client.send_multipart(make_codec().pack(1, Ask("it is me")))

        assert client.poll(60_000)
        answer = make_codec().unpack(client.recv_multipart())
        assert is_refused(answer, "impostor calls itself")
        assert "key of impostor" in site.wait_for_log("calls itself")


def test_nobody_gets_the_letters_of_another_by_its_name(site: Site):
    listener = site.listener("tcp://127.0.0.1:*")
    caller = site.caller(listener.addresses[0], identity=b"worker/1")
    caller.send(Ask("hello"))
    envelope = listener.receive(60)
    assert envelope is not None
    with impostor(site, listener, b"worker/1") as client:
        client.send_multipart(make_codec().pack(0, Ask("me too")))
        assert listener.receive(1) is None

        assert listener.send(envelope.sender, Told("secret"))
        news = caller.receive(60)
        assert news is not None
        assert news.message == Told("secret")
        codec = make_codec()
        while client.poll(100):
            assert codec.unpack(client.recv_multipart()).message != Told("secret")
    assert envelope.owner == "worker"
    assert not any(secret in line for line in site.log for secret in [envelope.sender.decode().partition("#")[2]])
    caller.close()
    listener.close()
