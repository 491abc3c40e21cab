"""Waking a thread that polls sockets, from any other thread."""

from __future__ import annotations

import threading
from contextlib import suppress

import zmq


class Waker:
    """A socket that becomes readable when somebody wakes whoever polls it."""

    def __init__(self) -> None:
        """Connect both ends within this process."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._lock = threading.Lock()
        self.socket = context.socket(zmq.PAIR)
        """For the poller of the thread that is woken."""
        self._other = context.socket(zmq.PAIR)
        place = f"inproc://waker-{id(self)}"
        self.socket.bind(place)
        self._other.connect(place)

    def wake(self) -> None:
        """Wake it; a waker that is closed wakes nobody."""
        with self._lock:
            if not self._other.closed:
                with suppress(zmq.Again):  # whoever was woken so often is awake
                    self._other.send(b"", zmq.NOBLOCK)

    def clear(self) -> None:
        """Be awake: sleep again at the next poll."""
        while self.socket.poll(0):
            self.socket.recv()

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            self.socket.close()
            self._other.close()
