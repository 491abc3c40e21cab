"""Listeners and callers with keys of their own, closed when the test ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dovetail.transport import Caller, Channel, Envelope, EnvelopeCodec, KeyRing, Listener, Refused, make_keys


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A question."""

    text: str = ""
    delay_s: float = 0.0


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """An answer."""

    text: str = ""


def make_codec(**options: Any) -> EnvelopeCodec:
    """Return a codec of the two messages."""
    return EnvelopeCodec(Ask | Told, **options)


class Site:
    """A folder with keys, sockets and lanes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, folder / "keys"
        self.lanes = folder / "lanes"
        self.lanes.mkdir(mode=0o700)
        self.log: list[str] = []
        for name in ("server", "worker"):
            make_keys(self.keys, name)

    def listener(self, *addresses: str, **options: Any) -> Listener:
        """Return a listener at these addresses, or at a Unix socket."""
        return Listener(
            addresses or [self.ipc],
            codec=make_codec(),
            keys=KeyRing(self.keys),
            name="server",
            log=self.log.append,
            **options,
        )

    @property
    def ipc(self) -> str:
        """Return the address of a Unix socket in the folder."""
        return f"ipc://{self.folder}/s"

    def caller(self, address: str, *, name: str = "worker", identity: bytes = b"", **options: Any) -> Caller:
        """Return a caller of the server."""
        options.setdefault("codec", make_codec())
        options.setdefault("keys", KeyRing(self.keys))
        return Caller(address, name=name, peer="server", identity=identity or name.encode(), **options)

    def wait_for_log(self, words: str, timeout_s: float = 60.0) -> str:
        """Return the first line of the log with these words."""
        line = wait_for(lambda: next((line for line in self.log if words in line), None), timeout_s)
        assert line is not None, f"no {words!r} in {self.log}"
        return line


def wait_for(look: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Return what `look` finds, or what it found last when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return found


def answer_to(channel: Channel, message: Any, arrays: Sequence[Any] = (), *, timeout_s: float = 60.0) -> Envelope:
    """Ask, and return the answer."""
    channel.ask(message, arrays)
    envelope = channel.receive(timeout_s)
    assert envelope is not None, f"no answer to {message} within {timeout_s:g} s"
    return envelope


def echo(envelope: Envelope) -> tuple[Any, tuple[Any, ...]]:
    """Answer with the same text and arrays."""
    time.sleep(envelope.message.delay_s)
    return Told(envelope.message.text), envelope.arrays


@contextmanager
def serving(listener: Listener, handler: Callable[[Envelope], Any] = echo) -> Iterator[Listener]:
    """Answer letters in a thread until the block ends, then close the listener."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            envelope = listener.receive(0.02)
            if envelope is not None:
                listener.reply(envelope, *handler(envelope))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener
    finally:
        stop.set()
        thread.join()
        listener.close()


def is_refused(envelope: Envelope, words: str) -> bool:
    """Return whether an envelope is a refusal that says this."""
    return isinstance(envelope.message, Refused) and words in envelope.message.reason
