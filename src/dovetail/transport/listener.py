"""The side that is called: one socket for any number of callers, each known by its key."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from dovetail.transport.arrays import Sendable
from dovetail.transport.authenticator import Authenticator
from dovetail.transport.envelope import MAX_FRAME_BYTES, Envelope, EnvelopeCodec, Refused, SharedMemoryReference
from dovetail.transport.errors import ListenError, WireError
from dovetail.transport.keys import KeyRing
from dovetail.transport.rate_limited_log import RateLimitedLog, printable
from dovetail.transport.shared_memory import SMALLEST_BYTES, SharedMemoryFile, SharedMemoryFiles
from dovetail.transport.sockets import name_in, prepare, receive_frames, shown

OWN_NAME = "a process calls under its own name: the identity of its line begins with it"
LOGGER = logging.getLogger(__name__)


class Listener:
    """Receives envelopes at its addresses and answers them; one thread uses it."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        codec: EnvelopeCodec,
        keys: KeyRing,
        name: str,
        lanes: Path | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        io_threads: int = 1,
        handshake_s: float = 5.0,
        log: Callable[[str], None] = LOGGER.warning,
        on_lane: Callable[[SharedMemoryFile], None] = lambda _: None,
    ) -> None:
        """Listen as process `name`; `log` is also called from a thread of the listener's own.

        A `context` that is given must have no other Listener in it: ZeroMQ has one authenticator for each. Otherwise
        the listener makes its own, whose `io_threads` share the work of encryption among the callers. Who has not
        proven its key after `handshake_s` is cut off and may try again; a key that was listed meanwhile is then good.
        `on_lane` is called with every lane that is mapped.
        """
        self._codec = codec.limited_to(max_frame_bytes)
        self._context = zmq.Context(io_threads) if context is None else context
        self._owns_context = context is None
        self._log = RateLimitedLog(log)
        self._memories = SharedMemoryFiles(lanes, on_lane=on_lane) if lanes is not None else None
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        """For a `zmq.Poller`; only `receive` and `send` may use it otherwise."""
        self._authenticator: Authenticator | None = None
        try:
            prepare(self.socket, max_frame_bytes)
            self.socket.setsockopt(zmq.HANDSHAKE_IVL, int(handshake_s * 1000))
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.own(name)
            self.socket.curve_server = True
            # Without these, whoever has any key may come in while the authenticator is not there.
            self.socket.setsockopt(zmq.ZAP_DOMAIN, b"dovetail")
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self._authenticator = Authenticator(self.socket, keys, self._log, max_frame_bytes)
            self.addresses = tuple(self._bind(address) for address in addresses)
        except BaseException:
            self.close()
            raise

    @property
    def refusals(self) -> Counter[str]:
        """How many strangers and broken envelopes were refused, by kind."""
        return self._log.counts

    def receive(self, timeout_s: float) -> Envelope | None:
        """Return the next good envelope, or None where none came in time; a bad one is refused and logged."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            frames = receive_frames(self.socket, timeout_s)
            if frames is None:
                return None
            envelope = self._open(frames)
            if envelope is not None:
                return envelope
            timeout_s = deadline_s - time.monotonic()
            if timeout_s <= 0:  # A flood of bad envelopes must not keep us here.
                return None

    def send(self, to: bytes, message: Any, arrays: Sequence[Sendable] = (), request: int = 0) -> bool:
        """Send a message; return whether the peer is there to take it."""
        return self._send(to, self._codec.pack(request, message, arrays))

    def reply(self, envelope: Envelope, message: Any, arrays: Sequence[Sendable] = ()) -> bool:
        """Answer an envelope, through its own lane where it has one; its views are void afterwards."""
        reference = None
        if envelope.lane is not None and arrays and sum(array.nbytes for array in arrays) >= SMALLEST_BYTES:
            offsets = envelope.lane.place(arrays)
            if offsets is not None:
                reference = SharedMemoryReference(envelope.lane.name, offsets)
        return self._send(envelope.sender, self._codec.pack(envelope.request, message, arrays, lane=reference))

    def close(self) -> None:
        """Stop listening; what was just sent is still delivered."""
        if self._authenticator is not None:
            self._authenticator.close()
            self._authenticator = None
        self.socket.close()
        if self._memories is not None:
            self._memories.close()
        if self._owns_context:
            self._context.term()

    def _bind(self, address: str) -> str:
        """Listen at an address, and return it with its port."""
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise ListenError(
                f"cannot listen at {address}: {error.strerror}",
                hint="another process may have the port, or the path is too long (107 bytes) or its folder missing",
            ) from None
        return str(self.socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def _open(self, frames: list[zmq.Frame]) -> Envelope | None:
        """Return the envelope in the frames; where there is none, refuse it."""
        sender, owner = frames[0].bytes, str(frames[-1].get("User-Id"))
        try:
            envelope = self._codec.unpack(
                [frame.buffer for frame in frames[1:]], sender=sender, owner=owner, lanes=self._lanes_of(owner)
            )
            if name_in(sender) != owner:
                raise WireError(f"{owner} calls itself {shown(sender)}", hint=OWN_NAME, request=envelope.request)
        except WireError as error:
            self._refuse(sender, owner, error.message, error.request)
            return None
        return envelope

    def refuse(self, envelope: Envelope, reason: str) -> None:
        """Tell the sender of an envelope why nobody does what it says, and write it down."""
        self._refuse(envelope.sender, envelope.owner, reason, envelope.request)

    def _refuse(self, sender: bytes, owner: str, reason: str, request: int) -> None:
        reason = printable(reason)
        text = f"refused a message of {shown(sender)} (key of {owner}): {reason}"
        self._log.say("bad message", (owner, reason[:60]), text)
        self.send(sender, Refused(reason), request=request)

    def _lanes_of(self, owner: str) -> Callable[[str], SharedMemoryFile] | None:
        """Return what finds the lanes of a process, and of no other."""
        memories = self._memories
        return None if memories is None else lambda name: memories.find(name, owner)

    def _send(self, to: bytes, frames: Sequence[Any]) -> bool:
        """Send frames to a peer, unless it has gone or does not read."""
        try:
            self.socket.send_multipart([to, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            why = "is gone" if error.errno == zmq.EHOSTUNREACH else "does not read what it is sent"
            self._log.say("peer gone", to, f"{shown(to)} {why}: a message for it is dropped")
            return False
        return True
