"""All processes of a job: its session, what they started, and whoever carries its folder in the environment.

Read from `/proc`. A process that closes its files, leaves the session and forgets its environment is still found as
long as it comes from the keeper, to which everything falls that its parent leaves behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "DOVETAIL_JOB_FOLDER"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process as `/proc/ID/stat` has it."""

    process: int
    parent: int
    session: int
    ticks: int
    """When it began: with its id it names one process only."""
    is_over: bool
    """Whether it has ended, and nobody has asked how."""


def facts_of(process: int) -> ProcessFacts | None:
    """Return a process's facts; None where it is not there."""
    try:
        text = (PROC / str(process) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = text.rpartition(")")[2].split()
    return ProcessFacts(process, int(words[1]), int(words[3]), int(words[19]), words[0] in "ZX")


def processes_of(folder: Path, *, leader: ProcessFacts | None, keeper: ProcessFacts | None) -> list[ProcessFacts]:
    """Return the living processes of the job in a folder, its keeper left out.

    `leader` and `keeper` are known to live: an id that was given out again would bring in strangers.
    """
    there = {facts.process: facts for facts in _all() if not facts.is_over}
    mark = f"{FOLDER}={folder}".encode()
    found = {
        process
        for process, facts in there.items()
        if (leader is not None and facts.session == leader.process) or _has_mark(process, mark)
    }
    left_out = {os.getpid()}
    if keeper is not None:
        found.add(keeper.process)
        left_out.add(keeper.process)
    grown = 0
    while grown != len(found):  # with all that they have started
        grown = len(found)
        found |= {process for process, facts in there.items() if facts.parent in found}
    return [there[process] for process in sorted(found - left_out) if process in there]


def send(facts: ProcessFacts, number: int) -> bool:
    """Send a signal to this very process; return whether it was there: an id that was given out again is another."""
    try:
        handle = os.pidfd_open(facts.process)
    except ProcessLookupError:
        return False
    try:
        again = facts_of(facts.process)
        if again is None or again.ticks != facts.ticks or again.is_over:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def ignores(process: int, number: int) -> bool:
    """Say whether a process drops a signal that is sent to it now."""
    with suppress(OSError):
        for line in (PROC / str(process) / "status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _all() -> Iterator[ProcessFacts]:
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (facts := facts_of(int(entry.name))) is not None:
            yield facts


def _has_mark(process: int, mark: bytes) -> bool:
    """Say whether a process has a job's folder in its environment; what is another user's is not of a job."""
    try:
        return mark in (PROC / str(process) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
