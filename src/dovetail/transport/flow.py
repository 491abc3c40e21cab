"""How long bytes were on their way, as the kernel counts them: no waiting of processes is in it.

TCP counts what was acknowledged and what was received. While it waits for an answer, a caller looks at these counts now
and then. A transfer began after the last look that found nothing of it, and was over with the first that found all. A
peer that is slow to answer, or busy when all has arrived, is no part of that; a caller that gets no core sees a
transfer as longer than it was, never as shorter. Only Linux tells; elsewhere nothing is known.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from typing import Literal

import zmq

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
