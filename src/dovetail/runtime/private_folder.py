"""The folder of one run's sockets and shared memory, in memory: of this user alone, and of no use without the run.

Every process of the run on this host holds a shared lock on the folder itself, which the kernel gives back when the
process ends, however it ends. So whoever gets it for itself alone knows that nobody is left: process ids, which mean
other processes in a container, do not matter.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_RUNS = 32
"""Of one process whose ports are held: one that makes more ready than it runs keeps no files open for all of them."""
_held_ports: dict[Path, list[int]] = {}
"""Their sockets' descriptors, by the private folder of their run, with which they go."""


def hold_port(address: str, folder: Path) -> int:
    """Return a port that stays ours until the private folder of the run goes; OSError: nobody can listen there.

    A socket that is bound and does not listen keeps its port from everyone who asks for any port; whoever asks for this
    very one, as our processes do, may listen on it, where both sockets allow it (SO_REUSEADDR, which ZeroMQ sets). When
    a process of the run dies, the next one finds its port free, too. Other systems than Linux have other rules: there a
    port is drawn and let go.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        port = int(holder.getsockname()[1])
        if sys.platform == "linux":
            _held_ports.setdefault(folder, []).append(holder.detach())
    if len(_held_ports) > MOST_RUNS:
        let_go(next(iter(_held_ports)))
    return port


def let_go(folder: Path) -> None:
    """Give back the ports of a run."""
    for holder in _held_ports.pop(folder, ()):
        os.close(holder)


PREFIX = "dovetail-run-"
MOST_LETTERS = 40
"""Of the path of the place for the folder: a socket's whole name has 107 at most, the folder's own 21 of them."""
SHORT_PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - the same
_held: dict[Path, tuple[int, int]] = {}
"""Who of us holds a folder, and through which descriptor: a child of a fork holds nothing of its own yet."""


def make_private_folder(parent: Path | None = None) -> Path:
    """Return a new folder that this process holds, and remove those that nobody holds any more."""
    place = _place() if parent is None else parent
    sweep_private_folders(place)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        if hold(folder):
            return folder  # else somebody swept it before it was held


def hold(folder: Path) -> bool:
    """Keep a folder from being swept for as long as this process lives; return whether it is there."""
    if folder in _held and _held[folder][0] == os.getpid():
        return folder.is_dir()
    try:
        descriptor = _open(folder)
    except OSError:  # on another host
        return False
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        return False
    _held[folder] = (os.getpid(), descriptor)
    return True


def remove_private_folder(folder: Path) -> None:
    """Remove a folder, of a run that is over, and give back its ports."""
    let_go(folder)
    shutil.rmtree(folder, ignore_errors=True)
    process_id, descriptor = _held.pop(folder, (0, -1))
    if process_id == os.getpid():
        os.close(descriptor)


def sweep_private_folders(parent: Path) -> list[Path]:
    """Remove the folders of runs of which no process lives, and return them."""
    swept = []
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, held, or gone in the same moment
            descriptor = _open(folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.geteuid():
                    shutil.rmtree(folder)
                    swept.append(folder)
            finally:
                os.close(descriptor)
    return swept


def _place() -> Path:
    """Return where folders go: into memory where there is such a place, and in any case where sockets' names fit."""
    temporary = Path(tempfile.gettempdir())
    places = [Path("/dev/shm"), temporary, *map(Path, SHORT_PLACES)]  # noqa: S108 - what is made there has mode 0700
    if at_runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(at_runtime))
    usable = (place for place in places if len(os.fsencode(place)) <= MOST_LETTERS and os.access(place, os.W_OK))
    return next(usable, temporary)


def _open(folder: Path) -> int:
    """Return a descriptor of a folder, for its lock."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
