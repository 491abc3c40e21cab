"""How fast bytes move: over loopback, to a device and back, and between two hosts.

Between hosts one side serves and the other measures, in frames (`FramedConnection`).
"""

from __future__ import annotations

import enum
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.errors import DovetailError

if TYPE_CHECKING:
    import torch

    from dovetail.spec import Link


VERSION = 1
MAGIC = b"DVLK"
HEADER = struct.Struct("!4sHHQ")
MOST_BYTES = 64 << 20
"""The largest transfer that is asked for, and the largest a server agrees to."""

CHUNK_BYTES = 1 << 20

DEFAULT_PORT = 7711
NUM_ROUND_TRIPS = 50
LONG_ENOUGH_S = 0.1
"""Transfers grow until one takes this long: on a slow link a burst that goes through at once then hardly counts."""
GREETING_S = 2.0
VISIT_S = 120.0
"""The longest a silent visitor, and any visitor, may keep a server from the next."""


class StrangerError(Exception):
    """The other side does not speak this protocol."""


class FrameKind(enum.IntEnum):
    """What a frame says."""

    GREETING = 1
    PUSH = 2
    DONE = 3
    PULL = 4
    DATA = 5
    GOODBYE = 6


class FramedConnection:
    """A connection that carries frames; each must be through within `timeout_s`, and all before `until_s`.

    Each has 16 bytes, magic + version + kind + size, and some a payload:

        GREETING            the first frame of each side
        PUSH n, n bytes     answered by DONE once all n bytes have arrived
        PULL n              answered by DATA n and n bytes
        GOODBYE             the last frame of whoever measures

    Whatever else arrives ends that visit, never the server, and every wait has a deadline.
    """

    def __init__(self, connection: socket.socket, *, timeout_s: float, until_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._timeout_s = timeout_s
        self._until_s = until_s
        self._payload = memoryview(os.urandom(CHUNK_BYTES))  # random: a link that compresses gains nothing
        self._space = memoryview(bytearray(CHUNK_BYTES))

    def greet(self) -> None:
        """Say who is speaking, and hear the same: each side then knows the other's version."""
        self.send(FrameKind.GREETING)
        self.expect(FrameKind.GREETING)

    def push(self, num_bytes: int) -> float:
        """Send a payload and return the seconds until the other side has said that it is there."""
        start_s = time.perf_counter()
        self.send(FrameKind.PUSH, num_bytes, payload=True)
        self.expect(FrameKind.DONE)
        return time.perf_counter() - start_s

    def pull(self, num_bytes: int) -> float:
        """Ask for a payload and return the seconds until all of it is here."""
        start_s = time.perf_counter()
        self.send(FrameKind.PULL, num_bytes)
        self.take(self.expect(FrameKind.DATA))
        return time.perf_counter() - start_s

    def send(self, kind: FrameKind, size: int = 0, *, payload: bool = False) -> None:
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

    def expect(self, kind: FrameKind) -> int:
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


class LinkError(DovetailError):
    """A link that cannot be measured: nobody answers, somebody else does, or it stalls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """What one direction of a link does: medians over repeats.

    `spread` is the median deviation of the bandwidth, relative to it.
    """

    bytes_per_s: float
    latency_s: float
    spread: float

    def seconds(self, payload_bytes: float) -> float:
        """Predict how long a payload takes: t = latency + payload / bandwidth."""
        return self.latency_s + payload_bytes / self.bytes_per_s

    def link(self, *, source: str, target: str) -> Link:
        """Return the link of a problem file between two types."""
        from dovetail.spec import Link  # noqa: PLC0415

        return Link(source=source, target=target, bytes_per_s=self.bytes_per_s, latency_s=self.latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeeds:
    """Both directions of a link: from here to there, and back."""

    there: LinkSpeed
    back: LinkSpeed


def fit_line(sizes_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return latency and bandwidth of the line t = latency + bytes / bandwidth with the least squares.

    Where noise tilts the line so far that its latency is below zero, or more bytes take less time, the line goes
    through the origin instead.
    """
    slope, latency_s = statistics.linear_regression(sizes_bytes, seconds)
    if slope <= 0 or latency_s < 0:
        slope, latency_s = statistics.linear_regression(sizes_bytes, seconds, proportional=True)
    return latency_s, 1.0 / slope


def measure_loopback(*, num_repeats: int = 5, deadline_s: float = 30.0) -> LinkSpeeds:
    """Return the speed of TCP between two ends on this machine; it is the memory's and the cores', not a wire's.

    The other end is a thread: sockets let go of the interpreter, and two processes come to the same figures.
    """
    with _listener("127.0.0.1", 0) as listener:
        until_s = time.monotonic() + deadline_s
        server = threading.Thread(
            target=_serve,
            args=(listener,),
            kwargs={"until_s": until_s, "num_visits": 1, "timeout_s": deadline_s, "tell": lambda _: None},
            daemon=True,
        )
        server.start()
        speeds = measure_link(
            "127.0.0.1", listener.getsockname()[1], num_repeats=num_repeats, timeout_s=deadline_s, deadline_s=deadline_s
        )
        server.join(timeout=deadline_s)
    return speeds


def measure_link(
    host: str, port: int = DEFAULT_PORT, *, num_repeats: int = 5, timeout_s: float = 10.0, deadline_s: float = 90.0
) -> LinkSpeeds:
    """Return the speed from here to a host where `serve_link` runs, and back.

    Each direction is a line fitted to transfers of several sizes; latency is half of the median small round trip.
    No single wait is longer than `timeout_s`, and the whole no longer than `deadline_s`.
    """
    place = f"{host}:{port}"
    try:
        with _connected(host, port, timeout_s=timeout_s) as connection:
            wire = FramedConnection(connection, timeout_s=timeout_s, until_s=time.monotonic() + deadline_s)
            wire.greet()
            there = _speed(wire.push, num_repeats=num_repeats, num_hops=2)
            back = _speed(wire.pull, num_repeats=num_repeats, num_hops=2)
            wire.send(FrameKind.GOODBYE)
            return LinkSpeeds(there=there, back=back)
    except StrangerError as stranger:
        raise LinkError(
            f"{place} does not answer as `dovetail link serve` does: {stranger}",
            hint="check the port, and that both hosts have the same Dovetail",
        ) from None
    except TimeoutError:
        raise LinkError(
            f"{place} stopped answering: no transfer within {timeout_s:g} s, or not all within {deadline_s:g} s",
            hint="another measurement may be running there, or the link is too slow: try again with a longer timeout",
        ) from None
    except OSError as error:
        raise LinkError(
            f"{place} broke off: {_reason(error)}", hint="see what `dovetail link serve` says there"
        ) from None


def serve_link(
    host: str = "0.0.0.0",  # noqa: S104  # another host is to reach it
    port: int = DEFAULT_PORT,
    *,
    for_s: float = 3600.0,
    num_visits: int | None = None,
    timeout_s: float = 10.0,
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Answer measurements, one visitor at a time; return how many came, after `num_visits` or `for_s` seconds.

    Anyone who can reach the port can measure: it takes bytes and forgets them, gives random ones, and nothing else.
    """
    with _listener(host, port) as listener:
        tell(f"listening on {_shown(listener.getsockname())}")
        return _serve(listener, until_s=time.monotonic() + for_s, num_visits=num_visits, timeout_s=timeout_s, tell=tell)


def measure_device_copies(device: str | int = "cuda", *, num_repeats: int = 5) -> LinkSpeeds:
    """Return the speed from pinned host memory to a CUDA device, and back, by the device's own clock."""
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise LinkError("there is no CUDA device to copy to", hint="`dovetail doctor` says why")
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    num_devices = torch.cuda.device_count()
    if place.type != "cuda" or (place.index or 0) >= num_devices:
        raise LinkError(f"there is no CUDA device {place}", hint=f"devices go from cuda:0 to cuda:{num_devices - 1}")
    with torch.cuda.device(place):
        on_host = torch.empty(MOST_BYTES, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty(MOST_BYTES, dtype=torch.uint8, device=place)

        def timed(target: torch.Tensor, source: torch.Tensor) -> Callable[[int], float]:
            def copy(num_bytes: int) -> float:
                start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                start.record()
                target[: num_bytes or 1].copy_(source[: num_bytes or 1], non_blocking=True)
                end.record()
                end.synchronize()
                return float(start.elapsed_time(end)) / 1e3

            return copy

        return LinkSpeeds(
            there=_speed(timed(on_device, on_host), num_repeats=num_repeats, num_hops=1),
            back=_speed(timed(on_host, on_device), num_repeats=num_repeats, num_hops=1),
        )


def _speed(transfer: Callable[[int], float], *, num_repeats: int, num_hops: int) -> LinkSpeed:
    """Return the speed of transfers that say how long they took; an empty one takes `num_hops` latencies."""
    empty_s = statistics.median(transfer(0) for _ in range(NUM_ROUND_TRIPS))
    largest = _largest(transfer)
    sizes = [largest * part // 4 for part in (1, 2, 3, 4)]
    speeds = [fit_line(sizes, [transfer(size) for size in sizes])[1] for _ in range(num_repeats)]
    median = statistics.median(speeds)
    deviation = statistics.median(abs(speed - median) for speed in speeds)
    return LinkSpeed(bytes_per_s=median, latency_s=empty_s / num_hops, spread=deviation / median)


def _largest(transfer: Callable[[int], float]) -> int:
    """Return the first size that takes long enough to time, at most `MOST_BYTES`."""
    size = 16 << 10
    while transfer(size) < LONG_ENOUGH_S and size < MOST_BYTES:
        size *= 4
    return min(size, MOST_BYTES)


def _serve(
    listener: socket.socket, *, until_s: float, num_visits: int | None, timeout_s: float, tell: Callable[[str], None]
) -> int:
    """Answer visitors until there were enough, or it is time; those who do not speak the protocol do not count."""
    served = 0
    while served != num_visits:
        try:
            listener.settimeout(left_s(until_s))
            connection, address = listener.accept()
        except TimeoutError:
            break
        try:
            with connection:
                _answer(connection, timeout_s=timeout_s, until_s=min(until_s, time.monotonic() + VISIT_S))
            served += 1
            tell(f"measured by {_shown(address)}")
        except StrangerError as stranger:
            tell(f"turned {_shown(address)} away: {stranger}")
        except TimeoutError:
            tell(f"gave {_shown(address)} up: it stopped answering")
        except OSError as error:
            tell(f"lost {_shown(address)}: {_reason(error)}")
    return served


def _answer(connection: socket.socket, *, timeout_s: float, until_s: float) -> None:
    """Answer one visitor until it says goodbye."""
    FramedConnection(connection, timeout_s=min(timeout_s, GREETING_S), until_s=until_s).greet()
    wire = FramedConnection(connection, timeout_s=timeout_s, until_s=until_s)
    while True:
        match wire.receive():
            case (FrameKind.PUSH, size):
                wire.take(size)
                wire.send(FrameKind.DONE)
            case (FrameKind.PULL, size):
                wire.send(FrameKind.DATA, size, payload=True)
            case (FrameKind.GOODBYE, _):
                return
            case (kind, _):
                raise StrangerError(f"it asked for kind {kind}")


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or say why it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise LinkError(
            f"cannot listen on {host}:{port}: {_reason(error)}",
            hint="choose an address of this host and a free port from 1 to 65535, or port 0 for any",
        ) from None


def _connected(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """Return a connection, or say why there is none."""
    if not 0 < port < 1 << 16:
        raise LinkError(f"there is no port {port}", hint="ports go from 1 to 65535")
    try:
        return socket.create_connection((host, port), timeout=timeout_s)
    except socket.gaierror as error:
        raise LinkError(f"{host} is not a host known here: {error.strerror}", hint="write its address") from None
    except OSError as error:
        reason = f"not within {timeout_s:g} s" if isinstance(error, TimeoutError) else _reason(error)
        raise LinkError(
            f"nobody answers at {host}:{port}: {reason}",
            hint=f"run `dovetail link serve --port {port}` there, and let its firewall pass that port",
        ) from None


def _shown(address: tuple[object, ...]) -> str:
    """Return an address as people write it."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _reason(error: Exception) -> str:
    """Return why a call failed, in the system's words."""
    code = getattr(error, "errno", None)
    return os.strerror(code) if code else str(error)
