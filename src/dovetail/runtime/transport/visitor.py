"""One connection to a listener, as the operating system sees it.

ZeroMQ's monitor tells the file descriptor of a connection when it is accepted and when it ends, but neither whose it is
nor who ended it. A duplicate of the descriptor can still be asked when ZeroMQ has closed its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

GREETING_BYTES = 64 + 170
"""What our side has sent in a CURVE handshake before the client has proven its key: greeting and WELCOME (RFC 26)."""
BYTES_ACKED_AT = 120
"""Where `tcpi_bytes_acked` is in Linux's `struct tcp_info`."""


class Visitor:
    """A connection that was accepted; close it when it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        """Note whose it is while that can be told."""
        self._connection = connection
        self.host, self.where = _name(connection)

    @classmethod
    def at(cls, descriptor: int) -> Visitor | None:
        """Return the connection behind a descriptor, or None where it has already gone."""
        try:
            copy = os.dup(descriptor)
        except OSError:
            return None
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            return None
        try:
            return cls(connection)
        except OSError:
            connection.close()
            return None

    def is_greeted(self) -> bool:
        """Return whether the handshake came to its end; where it cannot be told, yes."""
        if self._connection.family not in (socket.AF_INET, socket.AF_INET6):
            return True
        with contextlib.suppress(OSError, AttributeError, struct.error):
            info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            (acked_bytes,) = struct.unpack_from("=Q", info, BYTES_ACKED_AT)
            return bool(acked_bytes > GREETING_BYTES)
        return True

    def was_cut_off(self) -> bool:
        """Return whether we ended the connection: the other side has not, or has sent what was never read."""
        try:
            return len(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def _name(connection: socket.socket) -> tuple[str, str]:
    """Return the host of the other side, and its address."""
    if connection.family == socket.AF_UNIX:
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"process {pid}", f"process {pid} on this host"
    host, port = connection.getpeername()[:2]
    return str(host), f"{host}:{port}"
