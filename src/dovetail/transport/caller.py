"""The side that calls: a line to one listener."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from dovetail.transport.arrays import Sendable
from dovetail.transport.envelope import Codec, LaneReference, Letter
from dovetail.transport.errors import PeerLost, WireError
from dovetail.transport.flow import connection_of
from dovetail.transport.keys import KeyRing
from dovetail.transport.own_lane import OwnLane
from dovetail.transport.sockets import SHARED_CONTEXT, prepare, receive_frames, routing_id


class Caller:
    """Calls the listener of process `peer`; one thread uses it.

    With `lanes`, a folder of mode 0700 that both sides see, large arrays go through shared memory: one request at a
    time, so a second one that is sent before the answer came goes through the socket. Views in a letter hold until the
    next `ask`. Every request is answered once; whoever stops waiting says so with `abandon`.
    """

    def __init__(
        self,
        address: str,
        *,
        codec: Codec,
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
        self._lane = OwnLane(lanes, name, lane_bytes)
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

    def receive(self, timeout_s: float) -> Letter | None:
        """Return the next letter that somebody waits for, or None where none came in time."""
        deadline_s = time.monotonic() + timeout_s
        while (frames := receive_frames(self.socket, timeout_s)) is not None:
            try:
                letter = self._codec.unpack(
                    [frame.buffer for frame in frames], lanes=self._lane.find, connection=connection_of(frames[-1])
                )
            except WireError as error:
                if error.request == 0 or error.request in self._awaited:
                    self._awaited.discard(error.request)
                    self._lane.retire(error.request)  # The peer may still be busy with it.
                    raise
                self.late_replies += 1  # Its lane may be gone, which is no fault of the peer.
            else:
                if letter.request == 0 or letter.request in self._awaited:
                    self._awaited.discard(letter.request)
                    self._lane.free(letter.request)
                    return letter
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

    def _put(self, request: int, message: Any, arrays: Sequence[Sendable], lane: LaneReference | None = None) -> None:
        """Hand a letter to the socket."""
        try:
            self.socket.send_multipart(self._codec.pack(request, message, arrays, lane=lane), zmq.NOBLOCK)
        except zmq.Again:
            raise PeerLost(
                self._peer, f"takes no messages: {self._most_queued} wait for it already, or it broke off for good"
            ) from None
