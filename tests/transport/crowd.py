"""Somebody who holds as many connections to a port as it gets, and comes again when it is shown out."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator, Sequence

NEEDED_FILES = 4096


@contextlib.contextmanager
def crowd_at(addresses: Sequence[str], num_sockets: int = 1500) -> Iterator[None]:
    """Hold that many connections to each address until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], NEEDED_FILES), before[1]))
    stop, full = threading.Event(), threading.Event()
    targets = [(host, int(port)) for host, _, port in (a.removeprefix("tcp://").rpartition(":") for a in addresses)]

    def hold() -> None:
        held: dict[tuple[str, int], list[socket.socket]] = {target: [] for target in targets}
        while not stop.is_set():
            for target, sockets in held.items():
                sockets[:] = [each for each in sockets if is_open(each)]
                while len(sockets) < num_sockets:
                    sockets.append(connection_to(target))
            full.set()
            stop.wait(0.1)
        for each in (each for sockets in held.values() for each in sockets):
            each.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert full.wait(120)
        yield
    finally:
        stop.set()
        thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connection_to(target: tuple[str, int]) -> socket.socket:
    """Begin a connection, and wait for nothing."""
    connection = socket.socket()
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        connection.connect(target)
    return connection


def is_open(connection: socket.socket) -> bool:
    """Say whether the other side has kept a connection; close it where it has not."""
    try:
        if connection.recv(4096):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False
