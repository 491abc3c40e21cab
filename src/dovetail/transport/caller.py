"""The side that calls: a connection to one listener, and the shared memory that its requests travel through.

`Flow` measures how long bytes were on their way, as the kernel counts them: no waiting of processes is in it. TCP
counts what was acknowledged and what was received. While it waits for an answer, a caller looks at these counts now and
then. A transfer began after the last look that found nothing of it, and was over with the first that found all. A peer
that is slow to answer, or busy when all has arrived, is no part of that; a caller that gets no core sees a transfer as
longer than it was, never as shorter. Only Linux tells; elsewhere nothing is known.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import zmq

from dovetail.transport.arrays import Array, Sendable
from dovetail.transport.envelope import Envelope, EnvelopeCodec, SharedMemoryReference
from dovetail.transport.errors import PeerLost, WireError
from dovetail.transport.keys import KeyRing
from dovetail.transport.shared_memory import SMALLEST_BYTES, SharedMemoryFile, make_shared_memory
from dovetail.transport.sockets import SHARED_CONTEXT, prepare, receive_frames, routing_id

LOOK_EVERY_S = 0.002
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120
"""Of `tcpi_bytes_acked` in `struct tcp_info`, `tcpi_bytes_received` after it."""


def connection_of(frame: zmq.Frame) -> int:
    """Return the file descriptor of the connection that a frame came through, -1 where it is not known."""
    try:
        return int(frame.get(zmq.SRCFD))
    except (zmq.ZMQError, TypeError, ValueError):
        return -1


def carried(connection: int) -> tuple[int, int] | None:
    """Return how many bytes of a connection were acknowledged and received so far; None where nobody knows.

    A connection that was closed meanwhile may have left its number to another file: what is returned is of that one
    then. Nothing is done to it.
    """
    if connection < 0 or sys.platform != "linux":
        return None
    try:
        line = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=connection)
    except OSError:
        return None
    try:
        told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS_AT + _COUNTS.size)
    except OSError:
        return None
    finally:
        line.detach()  # it is ZeroMQ's
    if len(told) < _COUNTS_AT + _COUNTS.size:
        return None
    acknowledged, received = _COUNTS.unpack_from(told, _COUNTS_AT)
    return int(acknowledged), int(received)


class Flow:
    """What goes over a connection, or comes, from now on."""

    def __init__(self, connection: int, way: Literal["up", "down"]) -> None:
        self._connection, self._place = connection, 0 if way == "up" else 1
        self._looks: list[tuple[float, int]] = []
        self.look()

    def look(self) -> None:
        """See how far it is."""
        if (counts := carried(self._connection)) is not None:
            self._looks.append((time.perf_counter(), counts[self._place]))

    def seconds(self) -> float | None:
        """Return how long bytes were on their way at most, all being there; None where nobody knows."""
        return flow_seconds(self._looks)


def flow_seconds(looks: list[tuple[float, int]]) -> float | None:
    """Return the time from the last look that found nothing to the first that found all."""
    if not looks or looks[-1][1] <= looks[0][1]:
        return None
    begun_s = max(at_s for at_s, count in looks if count <= looks[0][1])
    over_s = min(at_s for at_s, count in looks if count >= looks[-1][1])
    return over_s - begun_s


class Channel(Protocol):
    """Sends requests to one peer and gives back its answers; one thread uses it."""

    is_near: bool
    """Whether large arrays go through shared memory."""

    def ask(self, message: Any, arrays: Sequence[Array] = ()) -> int:
        """Send a request and return its number."""
        ...

    def receive(self, timeout_s: float) -> Envelope | None:
        """Return the next envelope, or None where none came in time."""
        ...

    def abandon(self) -> None:
        """Want no answer any more to anything that was asked."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class CallerMemory:
    """At most one lane, lent to one request at a time; made when it is first needed."""

    def __init__(self, folder: Path | None, owner: str, lane_bytes: int) -> None:
        """Make lanes in `folder`; without one nothing ever goes through shared memory."""
        self._folder, self._owner, self._lane_bytes = folder, owner, lane_bytes
        self._file: SharedMemoryFile | None = None
        self._lent_to: int | None = None

    def load(self, request: int, arrays: Sequence[Sendable]) -> SharedMemoryReference | None:
        """Lend the lane to a request and put its arrays there where that pays; None where it is lent or cannot be had.

        Small arrays stay out, but the answer may be large.
        """
        if self._folder is None or self._lent_to is not None:
            return None
        if self._file is None:
            self._file = make_shared_memory(self._folder, self._owner, self._lane_bytes)
            if self._file is None:
                return None
        self._lent_to = request
        is_large = sum(array.nbytes for array in arrays) >= SMALLEST_BYTES
        return SharedMemoryReference(self._file.name, self._file.place(arrays) if is_large else None)

    def find(self, name: str) -> SharedMemoryFile:
        """Return the lane an answer refers to, which can only be the present one."""
        if self._file is None or self._file.name != name:
            raise WireError(f"an answer refers to the lane {name[:100]!r}, which is not ours")
        return self._file

    def free(self, request: int) -> None:
        """Take the lane back from a request that was answered."""
        if self._lent_to == request:
            self._lent_to = None

    def retire(self, request: int | None = None) -> None:
        """Give up the lane of a request that was not answered (None: of any), as the peer may still use it."""
        if self._lent_to is not None and request in (None, self._lent_to):
            self._lent_to = None
            self.close()

    def close(self) -> None:
        """Remove the file; who has it mapped keeps its memory."""
        if self._file is not None and self._folder is not None:
            (self._folder / self._file.name).unlink(missing_ok=True)
        self._file = None


class Caller:
    """Calls the listener of process `peer`; one thread uses it.

    With `lanes`, a folder of mode 0700 that both sides see, large arrays go through shared memory: one request at a
    time, so a second one that is sent before the answer came goes through the socket. Views in an envelope hold until
    the next `ask`. Every request is answered once; whoever stops waiting says so with `abandon`.
    """

    def __init__(
        self,
        address: str,
        *,
        codec: EnvelopeCodec,
        keys: KeyRing,
        name: str,
        peer: str,
        identity: bytes,
        lanes: Path | None = None,
        lane_bytes: int = 16 << 20,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        most_queued: int = 1000,
    ) -> None:
        """Connect as process `name`; the peer need not be there yet.

        `identity` tells this line from others: `NAME`, or `NAME/` and something. As a routing id it gets a secret, for
        whoever else knew that could have the answers.

        Up to `most_queued` messages wait for a peer that is not there. Without a `context` callers share one.
        """
        self._codec, self._peer = codec, peer
        self._most_queued = most_queued
        self._last_request = 0
        self._awaited: set[int] = set()
        self.late_replies = 0
        """Answers that came when nobody wanted them any more."""
        own_keys, peer_key = keys.own(name), keys.public(peer)
        self._lane = CallerMemory(lanes, name, lane_bytes)
        self.is_near = lanes is not None
        self._is_shared = context is None
        self.socket: zmq.Socket[bytes] = (context or SHARED_CONTEXT.borrow()).socket(zmq.DEALER)
        """For a `zmq.Poller`; only the methods here may use it otherwise. Call `receive` until it gives None."""
        try:
            prepare(self.socket, codec.max_frame_bytes)
            self.socket.sndhwm = most_queued
            self.socket.setsockopt(zmq.IDENTITY, routing_id(identity))
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            self.socket.curve_publickey, self.socket.curve_secretkey = own_keys
            self.socket.curve_serverkey = peer_key
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise PeerLost(peer, f"cannot be called at {address}: {error.strerror}") from None

    def send(self, message: Any, arrays: Sequence[Sendable] = ()) -> None:
        """Send a message that needs no answer; nothing of it is kept here."""
        self._put(0, message, arrays)

    def ask(self, message: Any, arrays: Sequence[Sendable] = ()) -> int:
        """Send a request and return its number, which its answer has too."""
        self._last_request += 1
        request = self._last_request
        try:
            self._put(request, message, arrays, self._lane.load(request, arrays))
        except BaseException:
            self._lane.free(request)
            raise
        self._awaited.add(request)
        return request

    def receive(self, timeout_s: float) -> Envelope | None:
        """Return the next envelope that somebody waits for, or None where none came in time."""
        deadline_s = time.monotonic() + timeout_s
        while (frames := receive_frames(self.socket, timeout_s)) is not None:
            try:
                envelope = self._codec.unpack(
                    [frame.buffer for frame in frames], lanes=self._lane.find, connection=connection_of(frames[-1])
                )
            except WireError as error:
                if error.request == 0 or error.request in self._awaited:
                    self._awaited.discard(error.request)
                    self._lane.retire(error.request)  # The peer may still be busy with it.
                    raise
                self.late_replies += 1  # Its lane may be gone, which is no fault of the peer.
            else:
                if envelope.request == 0 or envelope.request in self._awaited:
                    self._awaited.discard(envelope.request)
                    self._lane.free(envelope.request)
                    return envelope
                self.late_replies += 1
            timeout_s = deadline_s - time.monotonic()
        return None

    def abandon(self) -> None:
        """Want no answer any more to anything that was sent: what still comes is dropped."""
        self._awaited.clear()
        self._lane.retire()

    def close(self) -> None:
        """Hang up, once what was sent has gone out or half a second is over, and remove the shared memory."""
        if not self.socket.closed:
            self.socket.close()
            self._lane.close()
            if self._is_shared:
                SHARED_CONTEXT.give_back()

    def _put(
        self, request: int, message: Any, arrays: Sequence[Sendable], lane: SharedMemoryReference | None = None
    ) -> None:
        try:
            self.socket.send_multipart(self._codec.pack(request, message, arrays, lane=lane), zmq.NOBLOCK)
        except zmq.Again:
            raise PeerLost(
                self._peer, f"takes no messages: {self._most_queued} wait for it already, or it broke off for good"
            ) from None
