"""Where the members of a new ring tell each other their addresses: at the first of them, behind the run's keys.

PyTorch's own store listens on every interface and asks nobody who it is. This one is a `Listener` on the run's address:
whoever has no key of the run is refused, and so is whoever is no member. It is gone once the ring is formed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Union

import msgspec
import torch.distributed

from dovetail.runtime.process import Process
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.transport import Caller, Envelope, EnvelopeCodec, KeyRingError, Listener, ListenError, PeerLost, WireError

LOOK_S = 0.01
"""How often a member looks whether the others have come."""
ANSWER_S = 0.2
"""How long a member waits for an answer before it sees whether it is still wanted."""
MOST_BYTES = 1 << 20
"""What one member may leave: Gloo's addresses have some hundred bytes for each of the others."""


class StorePut(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Keep something under a key."""

    key: str
    value: bytes


class StoreGet(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """Tell what is kept under these keys."""

    keys: tuple[str, ...]


class StoreReply(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """The answer to both: what is kept under each key, None where there is nothing yet."""

    values: tuple[bytes | None, ...] = ()


class StoreLeave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """A member is in the ring, and needs the place no more."""


CODEC = EnvelopeCodec(Union[StorePut, StoreGet, StoreReply, StoreLeave])  # noqa: UP007 - a value here


@contextmanager
def _as_broken() -> Iterator[None]:
    """Have what goes wrong on the way be a ring that does not hold, as Gloo's own errors are: another is formed."""
    try:
        yield
    except (KeyRingError, ListenError, PeerLost, WireError) as error:
        raise RuntimeError(f"the rendezvous: {error}") from error


class RendezvousServer:
    """Keeps what members leave, in a thread of its own, until all of them are in the ring or it is closed."""

    def __init__(self, process: Process, host: str, members: Sequence[str]) -> None:
        """Listen on a free port of one address."""
        self._members = frozenset(members)
        with _as_broken():
            self._listener = Listener(
                [f"tcp://{host}:*"], codec=CODEC, keys=process.keys, name=process.name, log=process.log
            )
        self.address = self._listener.addresses[0].removeprefix("tcp://")
        self._kept: dict[str, bytes] = {}
        self._left_bytes = dict.fromkeys(self._members, 0)
        self._left: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dovetail-meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send everyone away."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed.is_set() and self._left != self._members:
                envelope = self._listener.receive(ANSWER_S)
                if envelope is not None:
                    self._answer(envelope)
        finally:
            self._listener.close()

    def _answer(self, envelope: Envelope) -> None:
        message, member = envelope.message, envelope.owner
        if member not in self._members:
            self._listener.refuse(envelope, f"{member} is no member of this ring")
        elif isinstance(message, StoreGet):
            self._listener.reply(envelope, StoreReply(tuple(self._kept.get(key) for key in message.keys)))
        elif isinstance(message, StoreLeave):
            self._left.add(member)
        elif isinstance(message, StorePut) and self._has_room(member, message):
            self._kept[message.key] = message.value
            self._listener.reply(envelope, StoreReply())
        else:
            self._listener.refuse(envelope, f"{type(message).__name__} of {member} makes no sense here")

    def _has_room(self, member: str, message: StorePut) -> bool:
        """Say whether something new may be kept; count it."""
        self._left_bytes[member] += len(message.key) + len(message.value)
        return message.key not in self._kept and self._left_bytes[member] <= MOST_BYTES


class Rendezvous:
    """A member's connection to the rendezvous."""

    def __init__(
        self, process: Process, first: str, address: str, wanted: Callable[[], bool], *, wait_s: float
    ) -> None:
        """Call the place of the member `first`; every wait ends after `wait_s`, or when it is not `wanted` any more."""
        self._wanted, self._wait_s = wanted, wait_s
        with _as_broken():
            self._connection = Caller(
                f"tcp://{address}",
                codec=CODEC,
                keys=process.keys,
                name=process.name,
                peer=first,
                identity=f"{process.name}/{process.process_id}-meeting".encode(),
            )

    def put(self, key: str, value: bytes) -> None:
        """Leave something for the others."""
        self._ask(StorePut(key, value), time.monotonic() + self._wait_s)

    def wait(self, keys: Sequence[str], wait_s: float | None = None) -> list[bytes]:
        """Return what others have left under these keys, once all of it is there."""
        deadline_s = time.monotonic() + (self._wait_s if wait_s is None else wait_s)
        while None in (values := self._ask(StoreGet(tuple(keys)), deadline_s).values):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"of {', '.join(keys)} some did not come to the rendezvous")
            time.sleep(LOOK_S)
        return [value for value in values if value is not None]

    def wait_for_all(self, keys: Sequence[str]) -> None:
        """Wait for others as long as that is wanted."""
        while None in self._ask(StoreGet(tuple(keys)), time.monotonic() + self._wait_s).values:
            time.sleep(LOOK_S)

    def leave(self) -> None:
        """Say that the ring is formed, and hang up."""
        with _as_broken():
            self._connection.send(StoreLeave())
        self._connection.close()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, message: StorePut | StoreGet, deadline_s: float) -> StoreReply:
        with _as_broken():
            self._connection.ask(message)
        while True:
            if not self._wanted():
                raise Abandoned
            with _as_broken():
                envelope = self._connection.receive(ANSWER_S)
            if envelope is not None and isinstance(envelope.message, StoreReply):
                return envelope.message
            if envelope is not None:
                raise RuntimeError(f"the rendezvous says: {envelope.message}")
            if time.monotonic() > deadline_s:
                raise RuntimeError("the rendezvous does not answer")


class RendezvousStore(torch.distributed.Store):  # type: ignore[misc, name-defined]
    """A rendezvous as Gloo wants it."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Keep the connection."""
        super().__init__()
        self._rendezvous = rendezvous

    def set(self, key: str, value: Any) -> None:
        """Leave something for the others."""
        self._rendezvous.put(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Return what somebody left, once it is there."""
        return self._rendezvous.wait([key])[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until everything is there."""
        self._rendezvous.wait(keys, timeout.total_seconds() if timeout is not None else None)
