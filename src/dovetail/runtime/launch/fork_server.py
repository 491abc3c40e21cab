"""One process that has loaded everything: a run's coordinator, servers and workers are forks of it.

Loading libraries is most of what a start takes. So it is done once, by a process that is started as early as a launcher
knows that it will need one, and that has no thread of Python's when it forks. What begins later, in the place of a
process that died or with a run that is taken over, begins in no time too.

It says how each process ended. Should it end itself, those that it forked go on, and another takes its place. When the
launcher ends, however it does, it ends them all; and each looks for that itself.

    python -m dovetail.runtime.launch.fork_server SOCKET LAUNCHER MODULE ...
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from dovetail.errors import DovetailError

PRELOAD = ["dovetail.runtime.launch.preload"]
NEWS = struct.Struct("=cii")
READY, FORKED, ENDED = b"r", b"f", b"e"
"""What it says: that all is loaded, a process id, or a process id and how that one ended."""
MOST_FILES = 16
"""Open files that go with an order."""
LOOK_S = 0.01
SILENT_S = 300.0
"""How long it may take to load everything, on a cold and busy machine, or to answer: one that hangs is ended."""
LEAVE = signal.SIGUSR1
"""Asks a worker to leave. SIGTERM is not it: a group that is sent that is to end as a whole."""
UNSEEN = "ended, and nobody saw how"
"""Of a process that outlived the one that forked it."""


class ForkServerEnded(DovetailError):  # noqa: N818
    """The process that starts others ended."""


class ForkedProcess:
    """A process that was forked, as its launcher has it: a `Handle` of this machine."""

    host = ""

    def __init__(self, server: ForkServer, pid: int, pidfd: int) -> None:
        """Keep how it is reached: a number may be given out again, and an open file may not."""
        self.pid, self._server, self._pidfd = pid, server, pidfd
        self._code: int | None = None

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        if self._code is None:
            self._code = self._server.code_of(self.pid)
        if self._code is not None:
            return f"killed by {signal.Signals(-self._code).name}" if self._code < 0 else f"exit status {self._code}"
        return UNSEEN if self._server.is_gone and self._has_ended(0.0) else None

    def ask_to_leave(self) -> None:
        """Have a worker hand its tasks to others and end."""
        self._send(LEAVE)

    def kill(self) -> None:
        """End it at once; nothing happens where it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended and that is known, at most so long."""
        until_s = time.monotonic() + timeout_s
        if self._has_ended(timeout_s):
            while self.how_it_ended() is None and time.monotonic() < until_s:
                time.sleep(LOOK_S)

    def _has_ended(self, timeout_s: float) -> bool:
        looking = select.poll()
        looking.register(self._pidfd, select.POLLIN)
        return bool(looking.poll(timeout_s * 1000))

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._pidfd)


class ForkServer:
    """The launcher's side."""

    def __init__(self) -> None:
        """Start it; it loads while the caller goes on."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(SILENT_S)
        words = [sys.executable, "-m", "dovetail.runtime.launch.fork_server", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [*words, *PRELOAD], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        self._lock = threading.RLock()
        self._is_ready = False
        self._codes: dict[int, int] = {}
        self._alive = 0
        self.is_gone = False
        self.launcher = os.getpid()

    def wait_until_ready(self) -> None:
        """Wait until it has loaded everything; one that ended is found out when it is needed."""
        with self._lock, suppress(ForkServerEnded):
            while not self._is_ready:
                self._take_in()

    def fork(
        self,
        target: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        things: tuple[Any, ...] | None = None,
        held: Sequence[int] = (),
    ) -> ForkedProcess:
        """Have a process call a function of `entry` with some words, in this folder; it holds some open files too.

        With `things`, those are given as well, after the launcher's main script was imported as Python's
        multiprocessing does: they may be of its classes. The second of `words` is the process's name.
        """
        order = {
            "target": target,
            "words": tuple(words),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "script": None if things is None else _preparation(words[1]),
        }
        with self._lock, os.fdopen(os.memfd_create("dovetail-order"), "w+b") as file:
            pickle.dump(order, file)
            if things is not None:
                pickle.dump(things, file)
            file.flush()
            launcher = os.pidfd_open(os.getpid())
            try:
                socket.send_fds(self._line, [FORKED], [file.fileno(), launcher, *held])
            except OSError:
                self._lose()
            finally:
                os.close(launcher)
            while (forked := self._take_in()) is None:
                pass
            return forked

    def code_of(self, pid: int) -> int | None:
        """Return how a process ended, as a negative signal or a status; None where that is not known."""
        self._catch_up()
        return self._codes.pop(pid, None)

    @property
    def is_needed(self) -> bool:
        """Say whether a process lives that it forked, in this process's own name."""
        self._catch_up()
        return self._alive > 0 and self.launcher == os.getpid()

    def _catch_up(self) -> None:
        """Take in what it has said."""
        with self._lock, suppress(ForkServerEnded):
            while not self.is_gone and select.select([self._line], [], [], 0.0)[0]:
                self._take_in()

    def _take_in(self) -> ForkedProcess | None:
        """Wait for its next word; return a process that was forked."""
        try:
            said, files, _, _ = socket.recv_fds(self._line, NEWS.size, MOST_FILES)
        except TimeoutError:
            self.process.kill()
            self._lose(f"said nothing for {SILENT_S:.0f} s")
        except OSError:
            said, files = b"", []
        if not said:
            self._lose()
        kind, pid, code = NEWS.unpack(said)
        if kind == ENDED:
            self._codes[pid] = code
        self._alive += {FORKED: 1, ENDED: -1, READY: 0}[kind]
        self._is_ready = True
        return ForkedProcess(self, pid, files[0]) if kind == FORKED else None

    def _lose(self, how: str = "ended") -> NoReturn:
        self.is_gone = True
        raise ForkServerEnded(
            f"the process that starts workers {how}",
            hint="it was killed, or ran out of memory: see the system's log (dmesg), and start again",
        )

    def close(self) -> None:
        """End it, and every process that it forked."""
        self.is_gone = True
        self._line.close()
        if os.getpid() == self.launcher:
            self.process.kill()
            self.process.wait()


def _preparation(name: str) -> dict[str, Any]:
    """Return what a process needs to import the launcher's main script."""
    found = spawn.get_preparation_data(name)
    return {**found, "authkey": bytes(found["authkey"])}


_servers: dict[tuple[object, ...], ForkServer] = {}
"""Of this process: one, but for who moves to another network or to other cores and starts a run there too."""


def fork_server() -> ForkServer:
    """Return the one of this process; where there is none, or it has ended, one is started."""
    network = Path("/proc/thread-self/ns/net").stat().st_ino
    standing = (os.getpid(), network, frozenset(os.sched_getaffinity(0)))
    if standing not in _servers or _servers[standing].is_gone:
        for other in [other for other, server in _servers.items() if server.is_gone or not server.is_needed]:
            _servers.pop(other).close()
        _servers[standing] = ForkServer()
    return _servers[standing]


@atexit.register
def _close() -> None:
    for server in _servers.values():
        server.close()
    _servers.clear()


# The process itself.


def main() -> None:
    """Load everything, then fork whoever is asked for, until the launcher ends."""
    line, launcher = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    gc.disable()
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.freeze()  # what is loaded stays: no child goes through it again, or copies its pages for that
    gc.enable()
    alive = os.pidfd_open(launcher)
    if os.getppid() != launcher:
        return
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    with suppress(OSError):  # nobody listens any more
        line.send(NEWS.pack(READY, 0, 0))
        while alive not in (ready := select.select([line.fileno(), woken, alive], [], [])[0]):
            if woken in ready:
                os.read(woken, 1 << 12)
                _reap(line, children)
            if line.fileno() in ready:
                word, files, _, _ = socket.recv_fds(line, len(FORKED), MOST_FILES)
                if not word:
                    break
                children.add(_fork(line, files, close=(woken, wake, alive)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(line: socket.socket, files: list[int], *, close: Sequence[int]) -> int:
    """Have a child be what an order says; return its process id, having told it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads that wait, and forking stops none
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for file in (*close, line.detach()):
                os.close(file)
            status = _be(files)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(line, [NEWS.pack(FORKED, pid, 0)], [pidfd])
    for file in (*files, pidfd):
        os.close(file)
    return pid


def _reap(line: socket.socket, children: set[int]) -> None:
    """Say how those ended that have."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        line.send(NEWS.pack(ENDED, pid, os.waitstatus_to_exitcode(status)))


def _be(files: list[int]) -> int:
    """Be what an order says; return the exit status."""
    for file in files:
        os.set_inheritable(file, False)
    paper, launcher, *_ = files
    threading.Thread(target=_end_with, args=(launcher,), name="dovetail-launcher", daemon=True).start()
    with os.fdopen(paper, "rb") as order:
        order.seek(0)
        said = pickle.load(order)  # noqa: S301 - of the launcher, which is this user's
        os.environ.clear()
        os.environ.update(said["environment"])
        os.chdir(said["folder"])
        things = () if said["script"] is None else _things(order, said["script"])
    target = getattr(importlib.import_module("dovetail.runtime.launch.entry"), said["target"])
    process = multiprocessing.Process(target=target, args=(*said["words"], *things), name=said["words"][1])
    return int(process._bootstrap())  # type: ignore[attr-defined]  # as a child of Python's multiprocessing begins


def _things(order: BinaryIO, preparation: dict[str, Any]) -> tuple[Any, ...]:
    """Return the objects of an order, with the launcher's main script imported."""
    from dovetail.runtime.prepare.main_guard import importing  # noqa: PLC0415 - in the child: the server stays small

    current = multiprocessing.current_process()
    current._inheriting = True  # type: ignore[attr-defined]  # by which a script that is imported knows that it is
    try:
        with importing(preparation.get("init_main_from_path")):
            spawn.prepare(preparation)
        found = pickle.load(order)  # noqa: S301 - of the launcher, which is this user's
    finally:
        del current._inheriting  # type: ignore[attr-defined]
    return tuple(found)


def _end_with(launcher: int) -> None:
    """End when the launcher does."""
    select.select([launcher], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: nothing of this process is to be kept
