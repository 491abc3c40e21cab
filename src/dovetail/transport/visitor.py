"""One connection to a listener, as the operating system sees it.

ZeroMQ's monitor tells the file descriptor of a connection when it is accepted and when it ends, but neither whose it is
nor who ended it. A duplicate of the descriptor can still be asked when ZeroMQ has closed its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct

GREETING_BYTES = 1 + 64 + 170
"""Acknowledged to us in a CURVE handshake before the client has proven its key: SYN, greeting, WELCOME (RFC 26)."""
BYTES_ACKED_AT = 120
"""Where `tcpi_bytes_acked` is in Linux's `struct tcp_info`."""


class Visitor:
    """A connection that was accepted; close it when it has ended."""

    def __init__(self, connection: socket.socket | None, host: str, where: str) -> None:
        """Keep a connection of our own, or None where it ended before anybody could look."""
        self._connection, self.host, self.where = connection, host, where
        self.is_shown_out = False

    @classmethod
    def at(cls, descriptor: int, endpoint: str) -> Visitor | None:
        """Return the connection that came to `endpoint`, or None where we can have no more open files.

        Whoever was thrown out in the same moment has no address any more. (Rarely the descriptor is somebody else's
        by then; the log then blames the wrong address, and nothing else depends on it.)
        """
        connection = None
        try:
            connection = socket.socket(fileno=os.dup(descriptor))
            return cls(connection, *_name(connection))
        except OSError as error:
            if connection is not None:
                connection.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return None
            return cls(None, endpoint, f"somebody at {endpoint}, gone before the address was known")

    def is_greeted(self) -> bool:
        """Return whether the handshake came to its end; where it cannot be told, yes."""
        if self._connection is None:
            return False  # A handshake takes longer than a look.
        if self._connection.family not in (socket.AF_INET, socket.AF_INET6):
            return True
        with contextlib.suppress(OSError, AttributeError, struct.error):
            info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            (acked_bytes,) = struct.unpack_from("=Q", info, BYTES_ACKED_AT)
            return bool(acked_bytes > GREETING_BYTES)
        return True

    def was_cut_off(self) -> bool:
        """Return whether we ended the connection: the other side has not, or has sent what was never read."""
        if self._connection is None:
            return True
        try:
            return len(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0
        except BlockingIOError:
            return True
        except OSError:
            return False

    def show_out(self) -> None:
        """End the connection: ZeroMQ sees its end and closes its own descriptor."""
        self.is_shown_out = True
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()


def _name(connection: socket.socket) -> tuple[str, str]:
    """Return the host of the other side, and its address."""
    if connection.family == socket.AF_UNIX:
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"process {pid}", f"process {pid} on this host"
    host, port = connection.getpeername()[:2]
    return str(host), f"{host}:{port}"
