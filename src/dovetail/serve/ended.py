"""What it means for a job that its processes are gone: it is over, or goes on later. Nothing is done here."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

from dovetail.serve.launcher import Found, Task
from dovetail.serve.local import LOG
from dovetail.serve.progress import Progress
from dovetail.serve.store import Job, State
from dovetail.serve.words import outcome_of

MOST_FAILURES = 3
"""How often in a row a job may be lost without having got on before it counts as failed."""
TAIL = 4000


class Ended(NamedTuple):
    """The state that a job has from now on."""

    state: State
    error: str | None = None
    failures: int = 0


def how_it_ended(job: Job, task: Task, found: Found, progress: Progress) -> Ended:
    """Return what becomes of a job whose attempt has no process any more."""
    outcome = outcome_of(task) if job.submission.run is not None else None
    is_whole = outcome.is_complete if outcome is not None else found.code == 0 and job.why is None
    is_good = found.state == "ended" and found.code == 0
    if is_good and (is_whole or job.why == "target"):
        return Ended("done")
    if job.why == "cancel":
        return Ended("cancelled")
    if job.why is not None or is_good:
        return Ended("queued")  # it keeps a checkpoint, and goes on from there
    if found.state == "ended" and not _was_killed(found.code):
        return Ended("failed", error=_last_error(task.folder / LOG) or f"exit status {found.code}")
    got_on = progress.last_s > job.since_s
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
