"""Processes that have loaded what they need before a run is theirs: a launcher that takes over begins in no time.

Loading libraries is most of what a start takes. So whoever takes over a run has everything loaded while the run still
goes on: the launcher itself, the process that forks workers, and interpreters for coordinator and servers that wait to
be told who they are:

    python -m dovetail.runtime.launch.ready SOCKET ROLE
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from typing import Literal

import msgspec

Role = Literal["coordinator", "server"]
LOADED = {
    "coordinator": ("dovetail.runtime.coordinator.loop", "tensorboardX.event_file_writer"),
    "server": ("dovetail.runtime.server.loop",),
}
READY = b"ready"


class Told(msgspec.Struct, frozen=True):
    """What a waiting process becomes."""

    words: list[str]


class ReadyRole:
    """A coordinator or server that waits to be told which."""

    def __init__(self, role: Role, environment: dict[str, str]) -> None:
        """Start it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.handle = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", __spec__.name, str(theirs.fileno()), role],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self.role, self._line = role, ours

    def wait(self, timeout_s: float) -> None:
        """Wait until it has loaded all it needs; one that does not is found out when it is told."""
        self._line.settimeout(timeout_s)
        try:
            self._line.recv(len(READY))
        except OSError:
            return

    def become(self, words: list[str], files: tuple[int, ...]) -> bool:
        """Have it be what the words say, holding some open files too; False where it is gone."""
        try:
            socket.send_fds(self._line, [msgspec.json.encode(Told(words))], list(files))
        except OSError:
            self.end()
            return False
        finally:
            self._line.close()
        return True

    def end(self) -> None:
        """End it."""
        self._line.close()
        self.handle.kill()
        self.handle.wait()


_waiting: list[ReadyRole] = []
"""Of this process; whoever is not needed ends with it, since its line breaks."""


def start_ready(role: Role, environment: dict[str, str]) -> None:
    """Start a process that will be what it is told once it has loaded what it needs."""
    _waiting.append(ReadyRole(role, environment))


def wait_until_ready(timeout_s: float = 60.0) -> None:
    """Wait until all that were started could begin."""
    for each in _waiting:
        each.wait(timeout_s)


def take_ready(role: Role, words: list[str], files: tuple[int, ...]) -> subprocess.Popen[bytes] | None:
    """Return a process that was ready and is now what the words say; None where there is none."""
    for each in [each for each in _waiting if each.role == role]:
        _waiting.remove(each)
        if each.become(words, files):
            return each.handle
    return None


def main() -> int:
    """Load what a role needs, wait, and be it."""
    line = socket.socket(fileno=int(sys.argv[1]))
    for module in LOADED[sys.argv[2]]:
        importlib.import_module(module)
    if sys.argv[2] == "server":
        _have_kernels()
    entry = importlib.import_module("dovetail.runtime.launch.entry")
    line.send(READY)
    text, files, _, _ = socket.recv_fds(line, 1 << 16, 8)
    line.close()
    if not text:
        return 0  # whoever started this has ended, or needs it no more
    for file in files:
        os.set_inheritable(file, False)
    sys.argv = [sys.argv[0], *msgspec.json.decode(text, type=Told).words]
    return int(entry.main())


def _have_kernels() -> None:
    """Use a small table once: the first kernel of a process takes most of a second, and others some time too."""
    np = importlib.import_module("numpy")
    embedding = importlib.import_module("dovetail.embedding")
    keys = np.arange(8, dtype=np.int64)
    with embedding.Table(width=4, optimizer=embedding.make_row_optimizer("adam"), host_bytes=1 << 20) as table:
        table.update(keys, table.lookup(keys))


if __name__ == "__main__":
    sys.exit(main())
