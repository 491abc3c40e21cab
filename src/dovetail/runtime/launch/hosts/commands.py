"""Command lines of `dovetail` on other hosts: started there, waited for, and what they print brought back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dovetail.errors import DovetailError
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.folder import BLUEPRINT, FIXED
from dovetail.runtime.launch.hosts.protocol import Bring, Fetch, FetchedFiles, HostProblem
from dovetail.runtime.launch.hosts.remote import RemoteHandle, RemoteHost
from dovetail.runtime.launch.hosts.shipped_files import code_of
from dovetail.spec.run import Run

LOOK_S = 0.1
RUN = "run"
"""What a run's folder is called on a host that it is brought to."""
_numbers = itertools.count()


@contextmanager
def started(remote: RemoteHost, arguments: Sequence[str]) -> Iterator[RemoteHandle]:
    """Have a command run for as long as the block lasts."""
    handle = remote.command(f"command-{next(_numbers)}", tuple(arguments))
    try:
        yield handle
    finally:
        if handle.how_it_ended() is None:
            handle.kill()


def wait_for_word(remote: RemoteHost, handle: RemoteHandle, word: str, *, timeout_s: float) -> None:
    """Wait until a command has said something to its user."""
    until_s = time.monotonic() + timeout_s
    while word not in (said := _written(remote, handle, "log")):
        if handle.how_it_ended() is not None or time.monotonic() > until_s:
            raise _failed(remote, handle, said)
        time.sleep(LOOK_S)


def printed_by(remote: RemoteHost, handle: RemoteHandle, *, timeout_s: float) -> str:
    """Wait until a command has ended, and return what it printed; raise its error where it has one."""
    handle.wait(timeout_s)
    if handle.how_it_ended() != "exit status 0":
        raise _failed(remote, handle, _written(remote, handle, "log"))
    return _written(remote, handle, "out")


def bring_run(remote: RemoteHost, folder: Path, run: Run, checkpoint: Path | None) -> str:
    """Bring what an evaluation of a run needs: its blueprint, the newest or another checkpoint, its code.

    Return where the checkpoint is, from the folder that commands run in.
    """
    chosen = checkpoint or checkpoints.newest(folder)
    files = {f"{RUN}/{name}": folder / name for name in (BLUEPRINT, FIXED) if (folder / name).is_file()}
    place = f"{RUN}/checkpoints/{chosen.name}"
    files |= {
        f"{place}/{path.relative_to(chosen).as_posix()}": path for path in sorted(chosen.rglob("*")) if path.is_file()
    }
    for name, path in files.items():
        remote.call(Bring(files={name: path.read_bytes()}))
    remote.call(Bring(files=code_of(run)))
    return place


def _written(remote: RemoteHost, handle: RemoteHandle, kind: str) -> str:
    """Return what a command has written so far: `log` for its user, `out` for others."""
    path = f"logs/{handle.name}.{kind}"
    found = remote.call(Fetch(paths=(path,)))
    return found.files.get(path, b"").decode(errors="replace") if isinstance(found, FetchedFiles) else ""


def _failed(remote: RemoteHost, handle: RemoteHandle, said: str) -> DovetailError:
    """Return what went wrong with a command, in its own words where it has some."""
    words = {
        kind: line.removeprefix(f"{kind}: ")
        for line in said.splitlines()
        for kind in ("error", "hint")
        if line.startswith(f"{kind}: ")
    }
    if "error" in words:
        return HostProblem(f"host `{remote.name}`: {words['error']}", hint=words.get("hint", "see to that host"))
    last = (said.strip().splitlines() or ["it said nothing"])[-1]
    how = handle.how_it_ended() or "it did not end in time"
    return HostProblem(f"host `{remote.name}`: {how}: {last}", hint="run the same command there to see more")
