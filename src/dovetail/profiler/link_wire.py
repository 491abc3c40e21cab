"""The frames in which two ends of a link speak while one measures the other.

Each has 16 bytes, magic + version + kind + size, and some a payload:

    GREETING            the first frame of each side
    PUSH n, n bytes     answered by DONE once all n bytes have arrived
    PULL n              answered by DATA n and n bytes
    GOODBYE             the last frame of whoever measures

Whatever else arrives ends that visit, never the server, and every wait has a deadline.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import time

VERSION = 1
MAGIC = b"DVLK"
HEADER = struct.Struct("!4sHHQ")
MOST_BYTES = 64 << 20
"""The largest transfer that is asked for, and the largest a server agrees to."""

CHUNK_BYTES = 1 << 20


class StrangerError(Exception):
    """The other side does not speak this protocol."""


class Kind(enum.IntEnum):
    """What a frame says."""

    GREETING = 1
    PUSH = 2
    DONE = 3
    PULL = 4
    DATA = 5
    GOODBYE = 6


class Wire:
    """A connection that carries frames; each must be through within `timeout_s`, and all before `until_s`."""

    def __init__(self, connection: socket.socket, *, timeout_s: float, until_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._timeout_s = timeout_s
        self._until_s = until_s
        self._payload = memoryview(os.urandom(CHUNK_BYTES))  # random: a link that compresses gains nothing
        self._space = memoryview(bytearray(CHUNK_BYTES))

    def greet(self) -> None:
        """Say who is speaking, and hear the same: each side then knows the other's version."""
        self.send(Kind.GREETING)
        self.expect(Kind.GREETING)

    def push(self, num_bytes: int) -> float:
        """Send a payload and return the seconds until the other side has said that it is there."""
        start_s = time.perf_counter()
        self.send(Kind.PUSH, num_bytes, payload=True)
        self.expect(Kind.DONE)
        return time.perf_counter() - start_s

    def pull(self, num_bytes: int) -> float:
        """Ask for a payload and return the seconds until all of it is here."""
        start_s = time.perf_counter()
        self.send(Kind.PULL, num_bytes)
        self.take(self.expect(Kind.DATA))
        return time.perf_counter() - start_s

    def send(self, kind: Kind, size: int = 0, *, payload: bool = False) -> None:
        """Send a header, and `size` bytes after it where it has a payload."""
        deadline_s = self._deadline_s()
        self._send(HEADER.pack(MAGIC, VERSION, kind, size), deadline_s)
        for sent in range(0, size if payload else 0, CHUNK_BYTES):
            self._send(self._payload[: size - sent], deadline_s)

    def receive(self) -> tuple[int, int]:
        """Return kind and size of the next frame, or refuse a stranger's."""
        header = bytearray(HEADER.size)
        self._receive(memoryview(header), self._deadline_s())
        magic, version, kind, size = HEADER.unpack(header)
        if magic != MAGIC:
            raise StrangerError(f"it sent {bytes(header)!r}")
        if version != VERSION:
            raise StrangerError(f"it speaks version {version} of the protocol, not {VERSION}")
        if size > MOST_BYTES:
            raise StrangerError(f"it wants to move {size} bytes at once, more than {MOST_BYTES}")
        return kind, size

    def expect(self, kind: Kind) -> int:
        """Return the size of the next frame, which must be of this kind."""
        received, size = self.receive()
        if received != kind:
            raise StrangerError(f"it sent a frame of kind {received} where {kind} belongs")
        return size

    def take(self, num_bytes: int) -> None:
        """Receive a payload and forget it."""
        deadline_s = self._deadline_s()
        for taken in range(0, num_bytes, CHUNK_BYTES):
            self._receive(self._space[: num_bytes - taken], deadline_s)

    def _deadline_s(self) -> float:
        return min(time.monotonic() + self._timeout_s, self._until_s)

    def _send(self, content: bytes | memoryview, deadline_s: float) -> None:
        self._connection.settimeout(left_s(deadline_s))
        self._connection.sendall(content)

    def _receive(self, space: memoryview, deadline_s: float) -> None:
        while space:
            self._connection.settimeout(left_s(deadline_s))
            received = self._connection.recv_into(space)
            if received == 0:
                raise ConnectionResetError("it closed the connection")
            space = space[received:]


def left_s(deadline_s: float) -> float:
    """Return the seconds until a deadline; past it, it is too late."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
