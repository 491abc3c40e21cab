"""A launcher's side of the process that speaks to Ray: started, asked, started again where it ended, and ended."""

from __future__ import annotations

import importlib.util
import itertools
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from dovetail.runtime.launch.hosts.framing import FramedSocket
from dovetail.runtime.launch.hosts.protocol import HostProblem, RequestRefused, Unreachable, encode
from dovetail.runtime.launch.hosts.ray.messages import (
    Connected,
    FromDriver,
    Reply,
    ToDriver,
    decode_from_driver,
)

CONNECT_S = 60.0
"""How long it may take to become a part of the cluster."""
PROBE_S = 5.0
"""How long the head may take to accept a connection."""
END_S = 10.0
LOOK_S = 0.2
NOT_LET_IN = b"InvalidAuthToken"
"""What Ray writes, over and over, to whoever has another token."""


class RayCluster:
    """A Ray cluster, and our process in it."""

    def __init__(self, address: str, *, lost_s: float) -> None:
        """Keep the address: `auto` for the cluster of this machine, or HEAD:PORT; nobody is called yet."""
        self.address, self._lost_s = address, lost_s
        self._process: subprocess.Popen[bytes] | None = None
        self._line: FramedSocket | None = None
        self._log: IO[bytes] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.Queue[Reply | None]] = {}
        self._lock = threading.Lock()
        self._users = 0

    def connect(self) -> Connected:
        """Start the process and have it become a part of the cluster; raise what is wrong."""
        if importlib.util.find_spec("ray") is None:
            raise HostProblem("Ray is not installed here", hint="pip install 'dovetail[ray]'")
        if self.address != "auto":
            _probe(self.address)
        self._forget_log()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the process runs
        here, theirs = socket.socketpair()
        ours = FramedSocket(here)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", f"{__package__}.driver", str(theirs.fileno()), self.address, str(self._lost_s)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        first = self._first_word(ours)
        if isinstance(first, Connected):
            self._line = ours
            threading.Thread(target=self._read, args=(ours,), name="dovetail-ray", daemon=True).start()
            return first
        ours.close()
        self._end_process()
        self._forget_log()
        which = "this machine" if self.address == "auto" else self.address
        raise HostProblem(f"the Ray cluster of {which}: {first.error}", hint=first.hint)

    def call(self, make: Callable[[int], ToDriver], timeout_s: float) -> bytes:
        """Return the answer to a message, which is made with a number; raise where there is none."""
        number, answers = next(self._numbers), queue.Queue[Reply | None](maxsize=1)
        self._waiting[number] = answers
        try:
            self.tell(make(number))
            reply = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise Unreachable(f"no answer in {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if reply is None:
            raise Unreachable(f"the process that speaks to Ray ended: {self._last_word()}")
        if reply.problem:
            raise HostProblem(reply.problem, hint=reply.hint)
        if reply.lost:
            raise Unreachable(reply.lost)
        return reply.answer

    def tell(self, message: ToDriver) -> None:
        """Send a message."""
        try:
            with self._lock:
                if self._line is None:
                    raise Unreachable(f"the process that speaks to Ray ended: {self._last_word()}")
                self._line.send(encode(message))
        except OSError as error:
            raise Unreachable(str(error)) from None

    def connect_again(self) -> None:
        """Start another process where the one that we had has ended: its keepers have, too."""
        with self._lock:
            if self._line is None:
                try:
                    self.connect()
                except HostProblem as problem:
                    raise Unreachable(str(problem)) from None

    def use(self) -> None:
        """Have one more line in use."""
        self._users += 1

    def leave(self) -> None:
        """Have one line less in use; with the last the process ends, and with it what we have in the cluster."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """Leave the cluster."""
        with self._lock:
            line, self._line = self._line, None
            if line is not None:
                with suppress(OSError):
                    line.hang_up()
            if self._process is not None:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
            self._end_process()
            self._forget_log()

    def _first_word(self, line: FramedSocket) -> Connected | RequestRefused:
        """Wait for word from the process; where the cluster does not let it in, that is seen in its log."""
        until_s = time.monotonic() + CONNECT_S
        with suppress(EOFError, OSError):
            while time.monotonic() < until_s:
                if line.poll(LOOK_S):
                    word: FromDriver = decode_from_driver(line.receive())
                    if not isinstance(word, Reply):
                        return word
                if NOT_LET_IN in self._said():
                    return RequestRefused(
                        "it does not let us in: the token is missing or another one",
                        hint="set RAY_AUTH_MODE=token, and give the cluster's token: RAY_AUTH_TOKEN_PATH, or "
                        "~/.ray/auth_token",
                    )
            return RequestRefused(f"it did not answer in {CONNECT_S:.0f} s", hint="see `ray status` on its head")
        return RequestRefused(f"the process that speaks to Ray ended: {self._last_word()}", hint="see `ray status`")

    def _read(self, line: FramedSocket) -> None:
        """Hand replies to those who wait for them, until the process is gone."""
        with suppress(EOFError, OSError, ValueError):
            while True:
                word = decode_from_driver(line.receive())
                if isinstance(word, Reply) and word.number in self._waiting:
                    self._waiting[word.number].put(word)
        with self._lock:
            if self._line is line:
                self._line = None
                self._end_process()
        line.close()
        for answers in list(self._waiting.values()):
            with suppress(queue.Full):
                answers.put_nowait(None)

    def _end_process(self) -> None:
        """End the process where it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _said(self) -> bytes:
        """Return what the process wrote."""
        return b"" if self._log is None else os.pread(self._log.fileno(), 1 << 20, 0)

    def _forget_log(self) -> None:
        """Close what the process wrote to."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _last_word(self) -> str:
        """Return the last thing that it wrote."""
        return next(reversed(self._said().decode(errors="replace").strip().splitlines()), "without a word")


def _probe(address: str) -> None:
    """Refuse an address that is none, or where nobody listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise HostProblem(f"`{address}` is no address of a Ray cluster", hint="write HEAD:PORT, such as 10.0.0.7:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise HostProblem(
            f"there is no Ray cluster at {address}: {error}",
            hint="start one there: ray start --head --port 6379; or see the address that `ray status` tells",
        ) from None
