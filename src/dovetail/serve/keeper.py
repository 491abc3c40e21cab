"""Keeps one job's processes: says who it is before it begins, and how it ended. Needs no package of ours.

The daemon starts it with the job's lock already locked. Keeper and job hold the open file, so the lock lasts until both
have ended, whatever becomes of the daemon: a job whose lock is held is not started again. What the job's process leaves
behind becomes the keeper's child, which stays until the last of them has ended.

    python keeper.py LOCK_FD FOLDER ATTEMPT WORD...
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
RESERVED = 64
"""Bytes of the file for the exit status, written before the job begins: a disk that is full at its end has those."""
AGAIN_S = 1.0
WRITING_MOST_S = 86_400.0
"""How long an exit status that cannot be written is tried again."""


def main() -> int:
    """Start the words as a process in a session of its own, wait, and write its exit status."""
    lock, folder, attempt, words = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    waits, goes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(goes)
        _begin(lock, waits, words)
    os.close(waits)
    try:
        draft = reserve(folder / f"exit-{attempt}.json")
        facts: dict[str, object] = {"process": child, "ticks": ticks_of(child)}
        facts |= {"keeper": os.getpid(), "keeper_ticks": ticks_of(os.getpid())}
        write(folder / f"process-{attempt}.json", facts)
    except OSError as error:
        os.kill(child, signal.SIGKILL)
        os.write(2, f"{words[0]} is not started yet: {error}\n".encode())
        return 75
    os.write(goes, b"!")  # its name is known now: it may begin
    os.close(goes)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    code = _code_of(child)
    until_s = time.monotonic() + WRITING_MOST_S
    while not _wrote(draft, folder / f"exit-{attempt}.json", code) and time.monotonic() < until_s:
        time.sleep(AGAIN_S)
    with suppress(ChildProcessError):
        while True:
            os.wait()  # for what it has left
    return 0


def _code_of(child: int) -> int:
    """Return how the job's own process ended, and let go of others that end before it."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _begin(lock: int, waits: int, words: list[str]) -> None:
    """Be the job, once the keeper has written down who that is."""
    try:
        os.setsid()
        if os.read(waits, 1) != b"!":
            os._exit(125)  # the keeper ended first
        os.close(waits)
        os.set_inheritable(lock, True)
        os.execvp(words[0], words)  # noqa: S606 - a user's own words, by no shell
    except OSError as error:
        os.write(2, f"error: {words[0]} cannot be started: {error}\n".encode())
        os._exit(127)


def reserve(path: Path) -> Path:
    """Return a file beside the one to come, as large as that will be."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(b" " * RESERVED)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _wrote(draft: Path, path: Path, code: int) -> bool:
    """Put the exit status where it is looked for; say whether that worked."""
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, json.dumps({"code": code}).encode().ljust(RESERVED), 0)
            os.fsync(file)
        finally:
            os.close(file)
        draft.replace(path)
    except OSError:
        return False
    return True


def write(path: Path, facts: dict[str, object]) -> None:
    """Write a file that is never seen half written and outlives a power cut."""
    draft = path.with_name(f".{path.name}")
    with draft.open("w") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def ticks_of(process: int) -> int | None:
    """Return when a process began, in ticks since the machine did: with its id it names one process only."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


if __name__ == "__main__":
    sys.exit(main())
