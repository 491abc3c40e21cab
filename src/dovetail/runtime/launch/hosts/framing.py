"""Messages over a stream of bytes, each with its length before it: to keepers over SSH, to who speaks to Ray."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

LENGTH_BYTES = 8
MOST_BYTES = 1 << 34
"""Of one message: whoever announces more is not one of us."""
CHUNK_BYTES = 1 << 20


def framed(content: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def length_of(head: bytes) -> int:
    """Return how long the message is that such bytes announce; refuse one that nobody sends."""
    length = int.from_bytes(head, "big")
    if length > MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


class FramedSocket:
    """Sends messages from any thread, and receives them in one; a side that hangs up is an `EOFError`."""

    def __init__(self, connection: socket.socket, *, heard: Callable[[], None] = lambda: None) -> None:
        """Take a connection over; `heard` is called whenever some bytes come, however long the message is."""
        self._socket, self._heard = connection, heard
        self._sending = threading.Lock()

    def send(self, content: bytes) -> None:
        """Send a message."""
        with self._sending:
            self._socket.sendall(framed(content))

    def receive(self) -> bytes:
        """Wait for a message."""
        return self._read(length_of(self._read(LENGTH_BYTES)))

    def poll(self, timeout_s: float) -> bool:
        """Say whether something came, or the other side hung up, within so long."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def hang_up(self) -> None:
        """Have both sides see the end; whoever receives here sees it as well, and closes."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(min(count - len(found), CHUNK_BYTES))
            if not part:
                raise EOFError
            self._heard()
            found += part
        return bytes(found)
