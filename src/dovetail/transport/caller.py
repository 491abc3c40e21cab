"""The side that calls: a connection to one listener, and the shared memory that its requests travel through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from dovetail.transport.arrays import Sendable
from dovetail.transport.envelope import Envelope, EnvelopeCodec, SharedMemoryReference
from dovetail.transport.errors import PeerLost, WireError
from dovetail.transport.flow import connection_of
from dovetail.transport.keys import KeyRing
from dovetail.transport.shared_memory import SMALLEST_BYTES, SharedMemoryFile, make_shared_memory
from dovetail.transport.sockets import SHARED_CONTEXT, prepare, receive_frames, routing_id


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
