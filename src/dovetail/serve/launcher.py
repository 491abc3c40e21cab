"""What starts a job's processes: one small protocol, so that other ways to start them are one new file each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from dovetail.errors import DovetailError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """One attempt at a job: what is started, where, and in which folder its files lie."""

    job: str
    attempt: int
    folder: Path
    words: tuple[str, ...] = ()
    work_folder: str = "/"
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProcess:
    """What became of an attempt.

    running    its own process is there
    left       that has ended, and others that it started have not
    ended      with the exit status `code`; nobody is left
    lost       it began, and nobody wrote down how it ended: the machine went down, or somebody killed it all
    never      it never began
    unknown    it could not be looked at, for the reason in `detail`: nothing follows from that
    """

    state: Literal["running", "left", "ended", "lost", "never", "unknown"]
    code: int | None = None
    process: int | None = None
    detail: str | None = None


Heard = Literal["told", "ignored", "nobody"]
"""Whether whoever was asked to stop was told, ignores it for now, or is not there yet."""


class NotNowError(DovetailError):
    """An attempt that could not be started for want of room, files or processes: later it may."""


class Launcher(Protocol):
    """Starts, finds, asks and ends the processes of jobs; whatever it keeps lies in the job's folder.

    A launcher that was started a moment ago knows as much as one that has run for days.
    """

    def start(self, task: JobAttempt) -> None:
        """Start an attempt, unless one still runs; NotNowError: it is to be tried again later."""
        ...

    def find(self, task: JobAttempt) -> FoundProcess:
        """Return what became of an attempt."""
        ...

    def ask_to_stop(self, task: JobAttempt) -> Heard:
        """Ask for a checkpoint and an end; OSError: nobody could be asked now."""
        ...

    def end(self, task: JobAttempt) -> None:
        """End it at once, with all its processes; OSError: not all of them could be."""
        ...
