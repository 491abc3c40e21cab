"""Keeps one job's process: says who it is before it begins, and how it ended when it has. Needs no package of ours.

The daemon starts it with the job's lock already locked. Keeper and job hold the open file, so the lock lasts until both
have ended, whatever becomes of the daemon: a job whose lock is held is not started again.

    python keeper.py LOCK_FD FOLDER ATTEMPT WORD...
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def main() -> int:
    """Start the words as a process in a session of its own, wait, and write its exit status."""
    lock, folder, attempt, words = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    waits, goes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(goes)
        _begin(lock, waits, words)
    os.close(waits)
    write(folder / f"process-{attempt}.json", {"process": child, "ticks": ticks_of(child), "keeper": os.getpid()})
    os.write(goes, b"!")  # its name is known now: it may begin
    os.close(goes)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    write(folder / f"exit-{attempt}.json", {"code": os.waitstatus_to_exitcode(status)})
    return 0


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
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


if __name__ == "__main__":
    sys.exit(main())
