"""The keeper as a process of its own on a host, and the way to it: standard input and output of a login there.

`python -m dovetail.runtime.launch.hosts.daemon TOKEN LOST_S` starts the keeper of that token where there is none, and
passes bytes on between it and whoever logged in. The keeper outlives the login: a connection that broke is made again.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from dovetail.open_files import allow_many_files
from dovetail.runtime.launch.hosts.keeper import Keeper
from dovetail.runtime.launch.hosts.protocol import FramedSocket

TOKEN = re.compile(r"[0-9a-f]{16,64}")
SOCKET = "keeper.sock"
START_S = 30.0
LOOK_S = 0.2
CHUNK_BYTES = 1 << 16


def folder_of(token: str) -> Path:
    """Return the folder of a keeper, in this user's cache."""
    if not TOKEN.fullmatch(token):
        raise ValueError(f"{token} is no token")
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dovetail" / "hosts" / token


# -- the keeper's own process ------------------------------------------------------------------------------------------


def serve(folder: Path, lost_s: float) -> None:
    """Keep processes until the launcher closes, or has been silent for too long."""
    os.umask(0o077)
    keeper = Keeper(folder, lost_s=lost_s)
    os.chdir(folder)  # the name of a socket may have 107 bytes, and a home folder's may be longer
    listener = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError):
        Path(SOCKET).unlink()
    listener.bind(SOCKET)
    listener.listen()
    listener.settimeout(LOOK_S)
    try:
        while not (keeper.is_closed or keeper.is_alone):
            with suppress(TimeoutError):
                line, _ = listener.accept()
                line.setblocking(True)
                threading.Thread(target=_answer_all, args=(keeper, line), daemon=True).start()
    finally:
        keeper.close()


def _answer_all(keeper: Keeper, line: socket.socket) -> None:
    """Answer one launcher's requests, in order, until it hangs up."""
    with closing(FramedSocket(line, heard=keeper.heard)) as messages, suppress(OSError, EOFError, ValueError):
        while True:
            messages.send(keeper.answer_encoded(messages.receive()))


# -- the way to it -----------------------------------------------------------------------------------------------------


def attach(folder: Path, lost_s: float) -> None:
    """Pass bytes on between standard input and output and the keeper, which is started where there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = _connected(folder)
    if line is None:
        with (folder / "keeper.log").open("ab") as log:
            subprocess.Popen(  # noqa: S603 - this interpreter, this module
                [sys.executable, "-m", __spec__.name, "--serve", str(folder), str(lost_s)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a login that ends does not end it
            )
        until_s = time.monotonic() + START_S
        while line is None and time.monotonic() < until_s:
            time.sleep(0.02)
            line = _connected(folder)
    if line is None:
        said = (folder / "keeper.log").read_text(errors="replace")[-2000:]
        sys.exit(f"the keeper did not start in {START_S:.0f} s: {said}")
    with line:
        _pass_on(line)


def _connected(folder: Path) -> socket.socket | None:
    """Return a connection to the keeper, or None where it does not listen."""
    os.chdir(folder)
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(SOCKET)
    except OSError:
        line.close()
        return None
    return line


def _pass_on(line: socket.socket) -> None:
    """Copy both ways until one side ends."""
    while True:
        ready, _, _ = select.select([0, line.fileno()], [], [])
        if 0 in ready:
            sent = os.read(0, CHUNK_BYTES)
            if not sent:
                return
            line.sendall(sent)
        if line.fileno() in ready:
            answered = line.recv(CHUNK_BYTES)
            if not answered:
                return
            while answered:
                answered = answered[os.write(1, answered) :]


def main() -> None:
    """Be the keeper, or the way to it."""
    if sys.argv[1] == "--serve":
        allow_many_files()
        serve(Path(sys.argv[2]), float(sys.argv[3]))
    else:
        attach(folder_of(sys.argv[1]), float(sys.argv[2]))


if __name__ == "__main__":
    main()
