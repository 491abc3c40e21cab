"""The side that calls: a line to one listener."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from dovetail.transport.arrays import Array
from dovetail.transport.envelope import Codec, Letter, Refused
from dovetail.transport.errors import CallAbandoned, PeerLost, WireError
from dovetail.transport.keys import KeyRing
from dovetail.transport.own_lane import OwnLane
from dovetail.transport.sockets import SHARED_CONTEXT, prepare, receive_frames

LOOK_S = 0.05
"""How often a waiting call looks whether it should give up."""
MOST_AWAITED = 10_000
"""Of more requests than this the oldest is taken to have no answer."""


class Caller:
    """Calls the listener of process `peer`; one thread uses it.

    With `lanes`, a folder of mode 0700 that both sides see, large arrays go through shared memory: one request at a
    time, so a second one that is sent before the answer came goes through the socket. Views in a letter hold until the
    next `send`. Every request is answered once; whoever stops waiting says so with `abandon`.
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
        """Connect as process `name`, with `identity` as routing id; the peer need not be there yet.

        Up to `most_queued` messages wait for a peer that is not there. Without a `context` callers share one.
        """
        self._codec, self._peer = codec, peer
        self._most_queued = most_queued
        self._last_request = 0
        self._awaited: dict[int, None] = {}  # in the order they were sent
        self._held: deque[Letter] = deque()
        self.late_replies = 0
        """Answers that came when nobody wanted them any more."""
        own_keys, peer_key = keys.own(name), keys.public(peer)
        self._lane = OwnLane(lanes, name, lane_bytes)
        self._is_shared = context is None
        self.socket: zmq.Socket[bytes] = (context or SHARED_CONTEXT.borrow()).socket(zmq.DEALER)
        """For a `zmq.Poller`; only the methods here may use it otherwise. Call `receive` until it gives None."""
        try:
            prepare(self.socket, codec.max_frame_bytes)
            self.socket.sndhwm = most_queued
            self.socket.setsockopt(zmq.IDENTITY, identity)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            self.socket.curve_publickey, self.socket.curve_secretkey = own_keys
            self.socket.curve_serverkey = peer_key
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise PeerLost(peer, f"cannot be called at {address}: {error.strerror}") from None

    def send(self, message: Any, arrays: Sequence[Array] = (), *, one_way: bool = False) -> int:
        """Send a request and return its number; of `one_way` nobody expects an answer."""
        self._last_request += 1
        request = self._last_request
        lane = None if one_way else self._lane.load(request, arrays)
        try:
            self.socket.send_multipart(self._codec.pack(request, message, arrays, lane=lane), zmq.NOBLOCK)
        except zmq.Again:
            self._lane.free(request)
            raise PeerLost(
                self._peer, f"takes no messages: {self._most_queued} wait for it already, or it broke off for good"
            ) from None
        except BaseException:
            self._lane.free(request)
            raise
        if not one_way:
            self._awaited[request] = None
            if len(self._awaited) > MOST_AWAITED:
                del self._awaited[next(iter(self._awaited))]
        return request

    def receive(self, timeout_s: float) -> Letter | None:
        """Return the next letter, or None where none came in time."""
        letter = self._held.popleft() if self._held else self._next(timeout_s)
        if letter is not None:
            self._lane.free(letter.request)
        return letter

    def call(
        self,
        message: Any,
        arrays: Sequence[Array] = (),
        *,
        timeout_s: float,
        give_up: Callable[[], bool] | None = None,
    ) -> Letter:
        """Send a request and return its answer, which may be `Refused`; other letters are kept for `receive`.

        Raise `PeerLost` when the time is over, `CallAbandoned` when `give_up()` says so.
        """
        deadline_s = time.monotonic() + timeout_s
        request = self.send(message, arrays)
        try:
            letter = self._await(request, deadline_s, give_up)
            if letter is None:
                raise PeerLost(self._peer, f"did not answer {type(message).__name__} within {timeout_s:g} s")
        except BaseException:
            self._forget(request)
            raise
        self._lane.free(request)
        return letter

    def abandon(self) -> None:
        """Want no answer any more to anything that was sent: what still comes is dropped."""
        self._awaited.clear()
        self._held.clear()
        self._lane.retire()

    def close(self) -> None:
        """Hang up, once what was sent has gone out or half a second is over, and remove the shared memory."""
        if not self.socket.closed:
            self.socket.close()
            self._lane.close()
            if self._is_shared:
                SHARED_CONTEXT.give_back()

    def _await(self, request: int, deadline_s: float, give_up: Callable[[], bool] | None) -> Letter | None:
        """Return the answer to a request, or None where it did not come in time; keep what else comes."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            letter = self._next(left_s if give_up is None else min(left_s, LOOK_S))
            if letter is not None and self._answers(letter, request):
                self._awaited.pop(request, None)
                return letter
            if letter is not None:
                self._held.append(letter)
            if give_up is not None and give_up():
                raise CallAbandoned(self._peer)
        return None

    def _next(self, timeout_s: float) -> Letter | None:
        """Return the next letter that somebody waits for, from the socket."""
        deadline_s = time.monotonic() + timeout_s
        while (frames := receive_frames(self.socket, timeout_s)) is not None:
            try:
                letter = self._codec.unpack([frame.buffer for frame in frames], lanes=self._lane.find)
            except WireError as error:
                if error.request == 0 or error.request in self._awaited:
                    self._forget(error.request)
                    raise
                self.late_replies += 1  # Its lane may be gone, which is no fault of the peer.
            else:
                if letter.request == 0 or letter.request in self._awaited:
                    self._awaited.pop(letter.request, None)
                    return letter
                self.late_replies += 1
            timeout_s = deadline_s - time.monotonic()
        return None

    def _answers(self, letter: Letter, request: int) -> bool:
        """Return whether a letter answers a request; a refusal without a number answers the one that is waited for."""
        return letter.request == request or (letter.request == 0 and isinstance(letter.message, Refused))

    def _forget(self, request: int) -> None:
        """Wait for a request's answer no more; the peer may still be busy with its lane."""
        self._awaited.pop(request, None)
        self._lane.retire(request)
