"""Jobs as processes of this machine, each in a session of its own that outlives the daemon.

Only what proves that something is not there counts as its absence. A file that cannot be opened for want of files, a
disk that fails, a lock that cannot be asked for: nothing is known then, and nothing is done about it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from dovetail.errors import DovetailError
from dovetail.serve import keeper
from dovetail.serve.job_processes import ProcessFacts, facts_of, ignores, processes_of, send
from dovetail.serve.launcher import FoundProcess, Heard, JobAttempt, NotNowError

T = TypeVar("T")
LOCK = "lock"
LOG = "log"
NEVER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.E2BIG)
"""What is wrong with a start itself, now and later: no such folder, not allowed, too many words."""


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who a job's process is."""

    process: int
    ticks: int | None
    keeper: int
    keeper_ticks: int | None = None


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
        try:
            lock = os.open(task.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _not_now(task, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with (
                (task.folder / LOG).open("ab") as log,
                (task.folder / f"out-{task.attempt}").open("wb") as out,
            ):
                self._keepers[task.job] = self._popen(task, lock, log.fileno(), out.fileno())
        except BlockingIOError:
            raise NotNowError(
                f"{task.job} still runs", hint="wait until its processes have ended, or cancel it"
            ) from None
        except OSError as error:
            raise _not_now(task, error) from None
        finally:
            os.close(lock)  # the keeper has its own

    def _popen(self, task: JobAttempt, lock: int, log: int, out: int) -> subprocess.Popen[bytes]:
        """Return the keeper, started."""
        words = [sys.executable, "-S", keeper.__file__, str(lock), str(task.folder), str(task.attempt), *task.words]
        try:
            return subprocess.Popen(  # noqa: S603 - our own file, then a user's own words
                words,
                cwd=task.work_folder,
                env={**os.environ, **dict(task.environment)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        except OSError as error:
            if error.errno in NEVER:
                raise DovetailError(
                    f"{task.job} cannot be started in {task.work_folder}: {error.strerror}",
                    hint="submit from a folder that the daemon can read, and see what this machine allows: `ulimit -a`",
                ) from None
            raise

    def find(self, task: JobAttempt) -> FoundProcess:
        """Look at the job's lock first: what its files say holds once nobody can change them."""
        self._reap(task.job)
        try:
            is_held = _is_held(task.folder / LOCK)
            ended = _read(task.folder / f"exit-{task.attempt}.json", Exit)
            record = _record(task)
            if is_held:
                state = "running" if ended is None else "left"
                return FoundProcess(state=state, process=None if record is None else record.process)  # type: ignore[arg-type]
            if self._members(task, record):
                return FoundProcess(state="left")
        except OSError as error:
            return FoundProcess(state="unknown", detail=str(error))
        if ended is not None:
            return FoundProcess(state="ended", code=ended.code)
        return FoundProcess(state="never" if record is None else "lost")

    def ask_to_stop(self, task: JobAttempt) -> Heard:
        """Send SIGTERM to the job's own process, which knows how to end the others; where it is gone, to those."""
        record = _record(task)
        if record is None:
            return "nobody"
        leader = _living(record.process, record.ticks)
        if leader is not None:
            is_deaf = ignores(record.process, signal.SIGTERM)
            if send(leader, signal.SIGTERM):
                return "ignored" if is_deaf else "told"
        for member in self._members(task, record):
            send(member, signal.SIGTERM)
        return "told"

    def end(self, task: JobAttempt) -> None:
        """Send SIGKILL to every process of the job; where none has said who it is, to what was to start it."""
        for member in self._members(task, _record(task)):
            send(member, signal.SIGKILL)

    def _members(self, task: JobAttempt, record: ProcessRecord | None) -> list[ProcessFacts]:
        """Return the job's processes, without its keeper where that is known."""
        if record is None:
            return processes_of(task.folder, leader=None, keeper=None)
        leader = _living(record.process, record.ticks)
        return processes_of(task.folder, leader=leader, keeper=_living(record.keeper, record.keeper_ticks))

    def _reap(self, job: str) -> None:
        """Let go of a keeper of ours that has ended."""
        mine = self._keepers.get(job)
        if mine is not None and mine.poll() is not None:
            del self._keepers[job]


def _not_now(task: JobAttempt, error: OSError) -> NotNowError:
    return NotNowError(
        f"{task.job} cannot be started now: {error.strerror}", hint="it is tried again; see the disk, and `ulimit -a`"
    )


def _record(task: JobAttempt) -> ProcessRecord | None:
    return _read(task.folder / f"process-{task.attempt}.json", ProcessRecord)


def _living(process: int, ticks: int | None) -> ProcessFacts | None:
    """Return a process, where it is still that one and lives: ids are given out again."""
    facts = facts_of(process) if process > 1 and ticks is not None else None
    return facts if facts is not None and facts.ticks == ticks and not facts.is_over else None


def _is_held(lock: Path) -> bool:
    """Say whether anybody holds a lock; OSError: that cannot be told."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _read(path: Path, kind: type[T]) -> T | None:
    """Return what a small file says, or None where it is not there or damaged; OSError: that cannot be told."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
