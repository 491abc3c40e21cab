"""What our sockets have in common."""

from __future__ import annotations

import os
import secrets
import threading

import zmq

LINGER_MS = 500
"""How long a closing socket tries to deliver what was just sent; a peer that is gone costs that much once."""
OVERHEAD_BYTES = 256
"""What encryption and the header may add to a frame of the largest size."""


def prepare(socket: zmq.Socket[bytes], max_frame_bytes: int) -> None:
    """Set what holds for both ends; heartbeats are the application's own, dead hosts are TCP's."""
    socket.linger = LINGER_MS
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes + OVERHEAD_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


def routing_id(identity: bytes) -> bytes:
    """Return an identity as the other side sees it: nobody else can come up with the same."""
    return identity + b"#" + secrets.token_hex(8).encode()


def name_in(sender: bytes) -> str:
    """Return the process whose routing id this is, or says it is."""
    return shown(sender).partition("/")[0]


def shown(sender: bytes) -> str:
    """Return a routing id for a log, without its secret."""
    return sender.partition(b"#")[0].decode(errors="backslashreplace")


def receive_frames(socket: zmq.Socket[bytes], timeout_s: float) -> list[zmq.Frame] | None:
    """Return the frames of the next message, or None where none came in time."""
    try:
        if timeout_s <= 0:
            return socket.recv_multipart(zmq.NOBLOCK, copy=False)
        timeout_ms = max(1, int(timeout_s * 1000))
        if socket.rcvtimeo != timeout_ms:
            socket.rcvtimeo = timeout_ms
        return socket.recv_multipart(copy=False)
    except zmq.Again:
        return None


class SharedContext:
    """The context of all callers of this process; the last one to leave waits until what it sent has gone out."""

    def __init__(self) -> None:
        """Make the context when somebody needs it."""
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._process_id = 0
        self._num_users = 0

    def borrow(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return the context; a child of a fork gets one of its own."""
        with self._lock:
            if self._context is None or self._process_id != os.getpid():
                self._context, self._process_id, self._num_users = zmq.Context(), os.getpid(), 0
            self._num_users += 1
            return self._context

    def give_back(self) -> None:
        """End the use of the context, after the socket was closed."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0 and self._context is not None:
                self._context.term()
                self._context = None


SHARED_CONTEXT = SharedContext()
