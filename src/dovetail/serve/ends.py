"""What the end of a job's process means for the job."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

from dovetail.serve.job_command import outcome_of
from dovetail.serve.launcher import FoundProcess, JobAttempt
from dovetail.serve.local import LOG
from dovetail.serve.store import JobRecord, State

MOST_FAILURES = 3
"""How often in a row a job may be lost without having got on before it counts as failed."""
TAIL = 4000


class Ended(NamedTuple):
    """The state that a job has from now on."""

    state: State
    error: str | None = None
    failures: int = 0


def how_it_ended(job: JobRecord, task: JobAttempt, found: FoundProcess, *, got_on: bool) -> Ended:
    """Return what becomes of a job whose attempt has no process any more; OSError: that cannot be read now."""
    outcome = outcome_of(task) if job.submission.run is not None else None
    # A program that ends well before it is told to stop, though that was decided already, has done all it had to.
    is_whole = outcome.is_complete if outcome is not None else found.code == 0 and job.told_s is None
    is_good = found.state == "ended" and found.code == 0
    if is_good and (is_whole or job.why == "target"):
        return Ended("done")
    if job.why == "cancel":
        return Ended("cancelled")
    if job.why is not None or is_good or found.state == "never":
        # It keeps a checkpoint, and goes on from there; or it could not be started, which is nobody's failure.
        return Ended("queued", failures=job.failures if found.state == "never" else 0)
    if found.state == "ended" and not _was_killed(found.code):
        return Ended("failed", error=_last_error(task.folder / LOG) or f"exit status {found.code}")
    failures = 0 if got_on else job.failures + 1
    if failures > MOST_FAILURES:
        return Ended("failed", error=f"lost {failures} times in a row before it had begun to work")
    return Ended("queued", failures=failures)


def _was_killed(code: int | None) -> bool:
    """Say whether somebody outside ended it: it may well go on."""
    return code is None or code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)


def _last_error(log: Path) -> str | None:
    """Return the last `error:` of a log, or its last line."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    said = errors or lines
    return said[-1] if said else None
