"""The meeting place of a ring: members find each other there, and nobody else gets in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch.distributed
import zmq

from dovetail.runtime.folder import KEYS
from dovetail.runtime.process import Process
from dovetail.runtime.worker.dense.rendezvous import (
    CODEC,
    MOST_BYTES,
    Rendezvous,
    RendezvousServer,
    RendezvousStore,
    StoreGet,
    StoreLeave,
    StorePut,
    StoreReply,
)
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.transport import Caller, KeyRing, Refused, make_keys
from tests.runtime.worker.makers import Bench, running

dist: Any = torch.distributed
MEMBERS = ("worker-0", "worker-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("meeting") / "run", workers=3)
    yield bench.folder
    bench.close()


@pytest.fixture
def place(folder) -> Iterator[RendezvousServer]:
    place = RendezvousServer(Process(folder, "worker-0"), "127.0.0.1", MEMBERS)
    yield place
    place.close()


def meeting(folder, place, name, wanted=lambda: True, wait_s=60.0) -> Rendezvous:
    return Rendezvous(Process(folder, name), "worker-0", place.address, wanted, wait_s=wait_s)


def caller(folder, place, name, keys=None) -> Caller:
    ring = keys or KeyRing(folder / KEYS)
    return Caller(f"tcp://{place.address}", codec=CODEC, keys=ring, name=name, peer="worker-0", identity=name.encode())


def test_members_find_what_others_left_and_the_place_closes_after_the_last(folder, place):
    first, second = (meeting(folder, place, name) for name in MEMBERS)
    first.put("a", b"1")
    second.put("b", b"2")

    assert first.wait(["a", "b"]) == [b"1", b"2"]
    assert second.wait(["a"]) == [b"1"]
    first.leave()
    second.leave()
    place._thread.join(60)
    assert not place._thread.is_alive()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address_of(place), timeout=1)


def listening_here() -> set[Any]:
    """Return where this process listens, other tests' threads included."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr for each in found if each.status == psutil.CONN_LISTEN}


def address_of(place: RendezvousServer) -> tuple[str, int]:
    host, _, port = place.address.rpartition(":")
    return host, int(port)


def test_it_listens_on_the_one_address_alone(place):
    host, port = address_of(place)

    assert [each.ip for each in listening_here() if each.port == port] == [host] == ["127.0.0.1"]


def test_a_stranger_without_a_key_can_neither_read_nor_write(folder, place):
    member = meeting(folder, place, "worker-0")
    member.put("here", b"secret")
    frames = [CODEC.pack(1, StoreGet(("here",))), CODEC.pack(2, StorePut("forged", b"x"))]
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.setsockopt(zmq.IDENTITY, b"worker-1")
        client.connect(f"tcp://{place.address}")
        for each in frames:
            client.send_multipart(each)
        assert not client.poll(500), "a stranger got an answer"
    host, port = address_of(place)
    with pytest.raises(RuntimeError):
        dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=1)).set("forged", "x")

    with pytest.raises(RuntimeError, match="did not come"):
        member.wait(["forged"], 0.1)
    member.close()


def test_a_key_of_another_run_opens_nothing(folder, place, tmp_path):
    make_keys(tmp_path / "keys", "worker-1")
    (tmp_path / "keys" / "worker-0.public").write_bytes((folder / KEYS / "worker-0.public").read_bytes())
    stranger = caller(folder, place, "worker-1", KeyRing(tmp_path / "keys"))
    stranger.ask(StoreGet(("here",)))

    assert stranger.receive(0.5) is None
    stranger.socket.linger = 0
    stranger.close()


def test_a_process_of_the_run_that_is_no_member_is_refused(folder, place):
    other = caller(folder, place, "worker-2")
    for message in (StoreGet(("here",)), StorePut("forged", b"x"), StoreLeave()):
        other.ask(message)
        envelope = other.receive(60)
        assert envelope is not None
        assert envelope.message == Refused("worker-2 is no member of this ring")
    other.close()


@pytest.mark.parametrize(
    "message",
    [
        StorePut("here", b"other"),
        StorePut("k", bytes(MOST_BYTES + 1)),
        StorePut("k" * MOST_BYTES, b"v"),
        StoreReply(),
        Refused(""),
    ],
)
def test_a_member_can_neither_change_what_is_kept_nor_fill_the_memory(folder, place, message):
    first = meeting(folder, place, "worker-0")
    first.put("here", b"mine")
    line = caller(folder, place, "worker-1")
    line.ask(message)
    envelope = line.receive(60)

    assert envelope is not None
    assert "makes no sense here" in envelope.message.reason
    assert first.wait(["here"]) == [b"mine"]
    line.close()
    first.close()


def test_waiting_ends_when_nobody_wants_it_or_the_time_is_over(folder, place):
    looks = iter([True, True, False])
    one, other = meeting(folder, place, "worker-0"), meeting(folder, place, "worker-1", lambda: next(looks))
    with pytest.raises(RuntimeError, match="did not come"):
        one.wait(["never"], 0.2)
    with pytest.raises(Abandoned):
        other.wait_for_all(["never"])
    place.close()
    late = meeting(folder, place, "worker-1", wait_s=0.3)
    with pytest.raises(RuntimeError, match="does not answer"):
        late.put("k", b"")
    late._connection.socket.linger = 0  # nobody will hear it
    for each in (one, other, late):
        each.close()


@pytest.mark.parametrize("how", ["abandoned", "late"])
def test_gloo_gives_up_with_its_member(folder, place, how):
    wanted = iter([True] * 5 + [False])
    one = meeting(folder, place, "worker-0", (lambda: next(wanted)) if how == "abandoned" else lambda: True)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=60 if how == "abandoned" else 0.5)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]

    with pytest.raises(Abandoned if how == "abandoned" else RuntimeError):
        dist.ProcessGroupGloo(RendezvousStore(one), 0, 2, options)  # the second never comes
    one.close()


def test_gloo_listens_on_the_address_that_it_is_given(folder, place):
    groups: list[Any] = []
    before = listening_here()

    def take_part(rank: int, name: str) -> None:
        one = meeting(folder, place, name)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        store = RendezvousStore(one)
        groups.append((dist.ProcessGroupGloo(store, rank, 2, options), store))
        one.leave()

    with running(*(lambda rank=rank, name=name: take_part(rank, name) for rank, name in enumerate(MEMBERS))):
        pass
    assert {each.ip for each in listening_here() - before} == {"127.0.0.1"}
    groups.clear()
