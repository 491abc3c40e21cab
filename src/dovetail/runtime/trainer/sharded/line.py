"""What the workers of a sharded run and their launcher tell each other: a socket in the run's private folder.

The folder is this user's alone, so whoever connects is one of the run's own processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import msgspec

from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.messages import Report
from dovetail.runtime.worker.control import Pulse

BEAT_S = 0.5


class WorkerBeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker lives."""

    name: str
    step: int
    stuck_s: float
    """How long one of its threads has been at the same thing."""
    longest_s: float
    """The longest that any of them ever was, and then went on."""


class Told(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How the run goes, by its first worker."""

    report: Report


class GroupLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker cannot reach the others, and ends."""

    name: str
    error: str


class WorkerFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker found what no other try would mend: the run ends."""

    name: str
    error: str
    hint: str


class StopNow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep what there is, and end."""


Word = WorkerBeat | Told | GroupLost | WorkerFailed
_words = msgspec.msgpack.Decoder(Word)
_orders = msgspec.msgpack.Decoder(StopNow)


def word_in(payload: bytes) -> Word:
    """Return what a worker says."""
    word: Word = _words.decode(payload)
    return word


def order_to_stop() -> bytes:
    """Return what tells the first worker to stop."""
    return msgspec.msgpack.encode(StopNow())


def socket_of(private: Path, generation: int) -> Path:
    """Return where the launcher listens."""
    return private / f"launcher-{generation}"


def store_of(private: Path, generation: int) -> Path:
    """Return the file by which the workers of a generation find each other."""
    return private / f"group-{generation}"


class LauncherLine:
    """A worker's end: signs of life from a thread of its own, reports, and the wish to stop."""

    def __init__(self, socket: Path, name: str, step: Callable[[], int]) -> None:
        """Connect, and show signs of life from now on; `step` says how far the worker is."""
        self._name, self._step = name, step
        self._clock = AwakeClock()
        self.pulse = Pulse(self._clock)
        self._line: Connection[Any, Any] = Client(str(socket), family="AF_UNIX")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="dovetail-line", daemon=True).start()

    def should_stop(self) -> bool:
        """Say whether the launcher wants the run to end."""
        return self._stop.is_set()

    def tell(self, word: Word) -> None:
        """Tell the launcher something; where it is gone, this process ends in a moment too."""
        with self._lock, suppress(OSError):
            self._line.send_bytes(msgspec.msgpack.encode(word))

    def close(self) -> None:
        """Say no more."""
        self._closed.set()
        with self._lock:
            self._line.close()

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._clock.now()
            stuck_s, longest_s = self.pulse.stuck_s, self.pulse.longest_s
            self.tell(WorkerBeat(name=self._name, step=self._step(), stuck_s=stuck_s, longest_s=longest_s))
            with suppress(OSError, EOFError):
                if self._line.poll(BEAT_S):
                    _orders.decode(self._line.recv_bytes())
                    self._stop.set()
