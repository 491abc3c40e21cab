"""Jobs as processes of this machine, each in a session of its own that outlives the daemon."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from dovetail.errors import DovetailError
from dovetail.serve import keeper
from dovetail.serve.launcher import FoundProcess, JobAttempt

T = TypeVar("T")
LOCK = "lock"
LOG = "log"


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who a job's process is."""

    process: int
    ticks: int | None
    keeper: int


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    code: int


class LocalLauncher:
    """Starts jobs here."""

    def __init__(self) -> None:
        """Start with no children; those of an earlier daemon are found by their files."""
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, task: JobAttempt) -> None:
        """Start an attempt; its lock is held from before its first process to after its last."""
        lock = os.open(task.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DovetailError(
                    f"{task.job} still runs", hint="wait until its processes have ended, or cancel it"
                ) from None
            with (
                (task.folder / LOG).open("ab") as log,
                (task.folder / f"out-{task.attempt}").open("wb") as out,
            ):
                self._keepers[task.job] = subprocess.Popen(  # noqa: S603 - our own file, then a user's own words
                    [
                        sys.executable,
                        "-S",
                        keeper.__file__,
                        str(lock),
                        str(task.folder),
                        str(task.attempt),
                        *task.words,
                    ],
                    cwd=task.work_folder,
                    env={**os.environ, **dict(task.environment)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        except OSError as error:
            raise DovetailError(
                f"{task.job} cannot be started in {task.work_folder}: {error.strerror}",
                hint="submit from a folder that the daemon can read, and see what this machine allows: `ulimit -a`",
            ) from None
        finally:
            os.close(lock)  # the keeper has its own

    def find(self, task: JobAttempt) -> FoundProcess:
        """Look at the job's lock first: what its files say holds once nobody can change them."""
        self._reap(task.job)
        record = _read(task.folder / f"process-{task.attempt}.json", ProcessRecord)
        if _is_held(task.folder / LOCK):
            return FoundProcess(state="running", process=None if record is None else record.process)
        if (ended := _read(task.folder / f"exit-{task.attempt}.json", Exit)) is not None:
            return FoundProcess(state="ended", code=ended.code)
        return FoundProcess(state="never" if record is None else "lost")

    def ask_to_stop(self, task: JobAttempt) -> None:
        """Send SIGTERM to the job's own process; it knows how to end the others."""
        if (record := self._living(task)) is not None:
            with suppress(ProcessLookupError):
                os.kill(record.process, signal.SIGTERM)

    def end(self, task: JobAttempt) -> None:
        """Send SIGKILL to everybody in the job's session."""
        if (record := self._living(task)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(record.process, signal.SIGKILL)

    def _living(self, task: JobAttempt) -> ProcessRecord | None:
        """Return who the job's process is, where it is still that one: ids are given out again."""
        record = _read(task.folder / f"process-{task.attempt}.json", ProcessRecord)
        if record is None or not _is_held(task.folder / LOCK):
            return None
        if record.process <= 1:  # a signal to the group of the first process goes to all there are
            return None
        return record if keeper.ticks_of(record.process) == record.ticks else None

    def _reap(self, job: str) -> None:
        """Let go of a keeper of ours that has ended."""
        mine = self._keepers.get(job)
        if mine is not None and mine.poll() is not None:
            del self._keepers[job]


def _is_held(lock: Path) -> bool:
    """Say whether anybody holds a lock."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _read(path: Path, kind: type[T]) -> T | None:
    """Return what a small file says, or None where it says nothing."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
