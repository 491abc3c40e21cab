"""Who may come in: checks the keys of newcomers, and keeps the connections of unauthenticated peers few.

It answers ZeroMQ's authentication requests (ZAP, RFC 27) and reads the socket's monitor. It sleeps unless somebody
connects or leaves, and the owner of the socket may sleep or compute meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading

import zmq
from zmq.utils.monitor import parse_monitor_message
from zmq.utils.z85 import encode

from dovetail.open_files import share_of_files
from dovetail.transport.errors import ListenError
from dovetail.transport.keys import KeyRing
from dovetail.transport.rate_limited_log import RateLimitedLog

GREETING_BYTES = 1 + 64 + 170
"""Acknowledged to us in a CURVE handshake before the client has proven its key: SYN, greeting, WELCOME (RFC 26)."""
BYTES_ACKED_AT = 120
"""Where `tcpi_bytes_acked` is in Linux's `struct tcp_info`."""


class IncomingConnection:
    """A connection that was accepted, as the operating system sees it; close it when it has ended.

    ZeroMQ's monitor tells the file descriptor of a connection when it is accepted and when it ends, but neither whose
    it is nor who ended it. A duplicate of the descriptor can still be asked when ZeroMQ has closed its own.
    """

    def __init__(self, connection: socket.socket | None, host: str, where: str) -> None:
        """Keep a connection of our own, or None where it ended before anybody could look."""
        self._connection, self.host, self.where = connection, host, where
        self.is_shown_out = False

    @classmethod
    def at(cls, descriptor: int, endpoint: str) -> IncomingConnection | None:
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


ZAP_ADDRESS = "inproc://zeromq.zap.01"
FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | FAILED
MOST_UNPROVEN = 1024
NO_CURVE = 0x11000002
"""ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH."""
WRONG_SERVER_KEY = 0x11000001
"""ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC."""


def most_unproven() -> int:
    """Return how many connections may be open whose owners have proven no key: a part of the files we may have open.

    Each takes two descriptors, ours and ZeroMQ's; the rest is for files and for those who have a key.
    """
    return share_of_files(8, MOST_UNPROVEN)


class Authenticator:
    """Guards one listening socket; the only one of its kind in the socket's context."""

    def __init__(self, socket: zmq.Socket[bytes], keys: KeyRing, log: RateLimitedLog, max_frame_bytes: int) -> None:
        """Start to guard the socket, which must not be bound yet."""
        self._keys, self._log, self._max_frame_bytes = keys, log, max_frame_bytes
        self._guarded = socket
        context = socket.context
        self._zap = context.socket(zmq.REP)
        try:
            self._zap.bind(ZAP_ADDRESS)
        except zmq.ZMQError as error:
            self._zap.close(linger=0)
            raise ListenError(
                f"the context already has a listener: {error}", hint="give each Listener a context of its own"
            ) from None
        self._monitor = socket.get_monitor_socket(EVENTS)
        self._stop_here, self._stop_there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        stop_address = f"inproc://dovetail-authenticator-{id(self)}"
        self._stop_there.bind(stop_address)
        self._stop_here.connect(stop_address)
        self._connections: dict[int, IncomingConnection] = {}
        self._unproven: dict[int, IncomingConnection] = {}
        """Those of them that had not proven their key when they were last looked at, the oldest first."""
        self._most_unproven = most_unproven()
        self._failure: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="transport-authenticator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop guarding; the guarded socket must still be open."""
        self._guarded.disable_monitor()
        self._stop_here.send(b"")
        self._thread.join()
        for each in (self._zap, self._monitor, self._stop_here, self._stop_there):
            each.close(linger=0)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _run(self) -> None:
        poller = zmq.Poller()
        for each in (self._zap, self._monitor, self._stop_there):
            poller.register(each, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop_there in ready:
                return
            if self._zap in ready:
                self._zap.send_multipart(self._decide(self._zap.recv_multipart()))
            if self._monitor in ready:
                event = parse_monitor_message(self._monitor.recv_multipart())
                self._notice(int(event["event"]), int(event["value"]), event["endpoint"].decode(errors="replace"))
                if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                    poller.unregister(self._monitor)

    def _decide(self, request: list[bytes]) -> list[bytes]:
        """Return the answer to an authentication request: whose key it is, or that it is nobody's."""
        version, number, _domain, address, _identity, mechanism, *credentials = request
        name = None
        if mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            name = self._keys.name_of(encode(credentials[0]))
        if name is None:
            where = address.decode(errors="replace")
            self._log.say("unknown key", where, f"refused a process at {where}: its key is not listed")
            # "Not now" (300), for the key may be listed later; after a "no" (400) ZeroMQ's clients never try again.
            return [version, number, b"300", b"key not listed", b"", b""]
        return [version, number, b"200", b"", name.encode(), b""]

    def _notice(self, event: int, value: int, endpoint: str) -> None:
        """Follow who is connected; what failed is told just before the connection ends."""
        if event == zmq.EVENT_ACCEPTED:
            self._drop(value)
            connection = IncomingConnection.at(value, endpoint)
            if connection is not None:
                self._connections[value] = self._unproven[value] = connection
                self._make_room()
            else:
                self._show_out_oldest()
        elif event & FAILED:
            self._failure = (event, value)
        elif event == zmq.EVENT_DISCONNECTED:
            failure, self._failure = self._failure, None
            connection = self._connections.get(value)
            if connection is not None and not connection.is_shown_out:
                self._explain(connection, failure)
            self._drop(value)

    def _make_room(self) -> None:
        """End the oldest unauthenticated connections where there are too many: a key is proven in a moment."""
        while len(self._unproven) > self._most_unproven:
            self._show_out_oldest()

    def _show_out_oldest(self) -> None:
        """End the oldest connection whose owner has not proven its key, where there is one."""
        while self._unproven:
            connection = self._unproven.pop(next(iter(self._unproven)))
            if not connection.is_greeted():
                self._log.say(
                    "crowd",
                    "crowd",
                    f"refused {connection.where}: more than {self._most_unproven} connections have proven no key",
                )
                connection.show_out()
                return

    def _drop(self, descriptor: int) -> None:
        self._unproven.pop(descriptor, None)
        connection = self._connections.pop(descriptor, None)
        if connection is not None:
            connection.close()

    def _explain(self, connection: IncomingConnection, failure: tuple[int, int] | None) -> None:
        """Write down why a connection ended, unless its end was an ordinary one."""
        where, host = connection.where, connection.host
        if failure is not None:
            event, value = failure
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return  # Written down when the key was looked up.
            if value == NO_CURVE:
                self._log.say("no encryption", host, f"refused {where}: it does not speak CURVE")
            elif value == WRONG_SERVER_KEY:
                self._log.say("wrong server key", host, f"refused {where}: it has another key of this process")
            else:
                self._log.say("broken handshake", host, f"refused {where}: its handshake failed or was never finished")
        elif not connection.is_greeted():
            self._log.say("not a peer", host, f"refused {where}: it does not speak our protocol")
        elif connection.was_cut_off():
            self._log.say(
                "oversized",
                host,
                f"cut off {where}: it sent a frame above {self._max_frame_bytes} bytes or broke the protocol",
            )
