"""Sees to the jobs: looks at what runs, asks the policy, and has what it answers done.

Everything that is decided is in the store before it is done, and what was done is found in the jobs' folders. So one
turn of the loop is the same after a start as at any other time: nothing is kept here that a new daemon would miss.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.errors import DovetailError
from dovetail.runtime.folder import ask_for
from dovetail.scheduler.pins import WithPins
from dovetail.scheduler.policy import Policy
from dovetail.scheduler.quotas import WithinQuotas
from dovetail.serve.job_command import gpus_of, outcome_of, task_of, write_run_file
from dovetail.serve.launcher import FoundProcess, JobAttempt, Launcher
from dovetail.serve.local import LOG
from dovetail.serve.outlook import JobHistory, outlook
from dovetail.serve.progress import RUN, JobProgress
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobRecord, JobStore, State

MOST_FAILURES = 3
"""How often in a row a job may be lost without having got on before it counts as failed."""
TAIL = 4000

LOOK_S = 0.2
SETTLED_S = 1.0
"""How long a new team works before its speed is taken."""
RESIZE_MOST_S = 60.0
"""How long a resize may take before the job is left with what it has."""
DRAIN = "drain"


class Ended(NamedTuple):
    """The state that a job has from now on."""

    state: State
    error: str | None = None
    failures: int = 0


def how_it_ended(job: JobRecord, task: JobAttempt, found: FoundProcess, progress: JobProgress) -> Ended:
    """Return what becomes of a job whose attempt has no process any more."""
    outcome = outcome_of(task) if job.submission.run is not None else None
    # A program that ends well before it is told to stop, though that was decided already, has done all it had to.
    is_whole = outcome.is_complete if outcome is not None else found.code == 0 and job.told_s is None
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


class EventLog:
    """Lines in a file; a full disk leaves gaps."""

    def __init__(self, path: Path) -> None:
        """Add to a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def tell(self, event: str, **facts: Any) -> None:
        """Write a line."""
        level = "error" if facts.get("error") is not None else "info"
        begins = {"time_s": round(time.time(), 3), "level": level, "role": "daemon", "event": event}
        line = {**begins, **{k: v for k, v in facts.items() if v is not None}}
        with self._lock, suppress(OSError):
            os.write(self._file, msgspec.json.encode(line) + b"\n")


class Controller:
    """One thread that nobody else's work waits for."""

    def __init__(
        self, folder: Path, store: JobStore, launcher: Launcher, policy: Policy, settings: DaemonSettings
    ) -> None:
        """Get ready; nothing is looked at before `run`."""
        self._folder, self._store, self._launcher = folder, store, launcher
        self._policy, self._settings = policy, settings
        self._journal = EventLog(folder / "log.jsonl")
        self.progress: dict[str, JobProgress] = {}
        self._measured: dict[str, tuple[int, int]] = {}
        """The attempt and size of each job whose speed was taken last."""
        self._settled: dict[str, tuple[int, int]] = {}
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._decided_s = 0.0
        self._is_due = True
        self.decisions, self.decision_s = 0, 0.0
        self.problems = 0

    def folder_of(self, job: str) -> Path:
        """Return where a job's files lie."""
        return self._folder / "jobs" / job

    def wake(self) -> None:
        """Have something new looked at, from any thread."""
        self._is_due = True
        self._woken.set()

    def stop(self) -> None:
        """End the loop."""
        self._stopped.set()
        self._woken.set()

    def run(self) -> None:
        """Turn until told to stop; what goes wrong with one turn is told and tried again."""
        self._journal.tell("serving", process=os.getpid(), policy=self._settings.policy)
        while not self._stopped.is_set():
            try:
                self.turn()
            except Exception as problem:  # a policy of somebody's own, a full disk: the jobs go on
                self.problems += 1
                self._is_due = True
                self._journal.tell("problem", error=f"{type(problem).__name__}: {problem}")
                self._stopped.wait(1.0)
            self._woken.wait(LOOK_S)
            self._woken.clear()

    def turn(self) -> None:
        """Look at every job that runs, then decide where there is a reason to."""
        for job in self._store.jobs(("running",)):
            self._look_at(job)
        is_round = time.time() - self._decided_s >= self._settings.round_s
        if self._is_due or is_round:
            self._is_due = False
            self._decide()

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look_at(self, job: JobRecord) -> None:
        """See whether a job is still there, and how it does."""
        task = task_of(job, self.folder_of(job.id))
        found = self._launcher.find(task)
        progress = self.progress.setdefault(job.id, JobProgress(task.folder))
        progress.look()
        if found.state != "running":
            self._close(job, how_it_ended(job, task, found, progress), progress)
        elif job.why is not None:
            self._see_to_stop(job, task)
        else:
            self._watch(job, progress)

    def _close(self, job: JobRecord, ended: Ended, progress: JobProgress) -> None:
        """Write down what became of a job that has no process any more."""
        figures = (progress.done, progress.total, progress.loss)
        self._store.finish(job, ended.state, error=ended.error, failures=ended.failures, figures=figures)
        self._journal.tell(f"job {ended.state}", job=job.id, attempt=job.attempt, error=ended.error)
        if ended.state != "queued":
            self.progress.pop(job.id, None)
        self._settled.pop(job.id, None)
        self._is_due = True

    def _see_to_stop(self, job: JobRecord, task: JobAttempt) -> None:
        """Tell a job to stop, once; end it where it does not."""
        if job.told_s is None:
            self._store.told(job.id)
            self._launcher.ask_to_stop(task)
            self._journal.tell("told to stop", job=job.id, why=job.why)
        elif time.time() - job.told_s > self._settings.grace_s:
            self._launcher.end(task)
            self._journal.tell("ended by force", job=job.id, why=job.why)

    def _watch(self, job: JobRecord, progress: JobProgress) -> None:
        """Take the speed of a job that has worked a while, and see whether a change is done."""
        target = job.submission.target_loss
        if target is not None and progress.loss is not None and progress.loss <= target:
            self._store.tell_to_stop(job.id, "target")
            return
        if job.submission.run is None:
            workers, since_s = job.workers, job.since_s
            if progress.last_s <= since_s:
                return
        else:
            present = progress.present()
            if present is None:
                return
            workers, since_s = present
            if workers != job.workers and not job.submission.fixed_workers:
                self._see_to_size(job, workers)
                return
        self._note_settled(job, max(since_s, job.since_s))
        if self._measured.get(job.id) == (job.attempt, workers):
            return
        speed = progress.speed_since(max(since_s, job.since_s) + SETTLED_S, least_s=self._settings.measure_s)
        if speed is not None and speed > 0 and job.type is not None:
            self._measured[job.id] = (job.attempt, workers)
            self._store.add_speed(job.submission.speed_kind, job.type, workers, speed)
            self._is_due = True

    def _see_to_size(self, job: JobRecord, workers: int) -> None:
        """Ask again for the size that a job is to have; leave it with what it has where that does not come."""
        if time.time() - job.since_s > RESIZE_MOST_S and workers > 0:
            self._store.resize(job, workers, detail=f"{job.workers} workers did not come")
            self._journal.tell("resize failed", job=job.id, wanted=job.workers, workers=workers)
        ask_for(self.folder_of(job.id) / RUN, job.workers, gpus_of(job))

    def _note_settled(self, job: JobRecord, since_s: float) -> None:
        """Keep how long a start or a resize took, once it is done."""
        now = (job.attempt, job.workers)
        before, self._settled[job.id] = self._settled.get(job.id), now
        if len(job.units) > job.workers:
            self._store.keep_units(job)
        if before == now:
            return
        if before is not None and before[1] > job.workers:
            self._is_due = True  # workers are free now
        what = "resize" if before is not None and before[0] == job.attempt else "start"
        if 0 < since_s - job.since_s < RESIZE_MOST_S:
            self._store.add_change(job.id, what, since_s - job.since_s)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Ask the policy, and have its answer done as far as there is room now."""
        self._decided_s = time.time()
        drain = self._store.setting(DRAIN)
        running = self._store.jobs(("running",))
        if drain == "now":
            for job in running:
                if job.why is None:
                    self._store.tell_to_stop(job.id, "wait")
            return
        waiting = [] if drain else self._store.jobs(("queued",))
        stopping = [job for job in running if job.why is not None]
        jobs = sorted([*(job for job in running if job.why is None), *waiting], key=lambda job: job.number)
        if not jobs:
            return
        now_s = time.time()
        known = outlook(self._settings, jobs, self._progress(jobs), self._seen(), now_s, taken=_held(stopping))
        users = [job.user for job in jobs]
        pins = {row: job.pinned for row, job in enumerate(jobs) if job.pinned is not None}
        policy = WithPins(WithinQuotas(self._policy, users=users, quotas=self._settings.quotas), pins)
        begun_s = time.perf_counter()
        wanted = policy.decide(known.cluster.view(known.watching), now_s - min(job.submitted_s for job in jobs))
        self.decisions += 1
        self.decision_s += time.perf_counter() - begun_s
        stops, starts = known.cluster.changes(wanted)
        types = known.cluster.table.types
        for row in stops:
            self._store.tell_to_stop(jobs[row].id, "wait")
            self._journal.tell("stops for others", job=jobs[row].id)
        starts.sort(key=lambda start: start.workers - jobs[start.row].workers)  # what shrinks makes room
        for start in starts:
            self._change(jobs[start.row], types[start.kind], start.workers)

    def _progress(self, jobs: Sequence[JobRecord]) -> dict[str, JobProgress]:
        """Return what is known of jobs, those that wait as well: they may have run before this daemon began."""
        for job in jobs:
            if job.attempt and job.id not in self.progress:
                self.progress[job.id] = JobProgress(self.folder_of(job.id))
                self.progress[job.id].look()
        return self.progress

    def _seen(self) -> JobHistory:
        return JobHistory(
            speeds=self._store.speeds(),
            sizes=self._store.sizes(),
            starts_s=self._store.changes_s("start"),
            resizes_s=self._store.changes_s("resize"),
        )

    def _change(self, job: JobRecord, type_: str, workers: int) -> None:
        """Start a job, give it other workers, or have it stop to be started elsewhere."""
        if job.state == "queued":
            if workers <= self._free(type_):
                self._start(job, type_, workers)
            return
        if job.type != type_ or not self._settings.resizes(job.submission):
            self._store.tell_to_stop(job.id, "wait")
        elif workers - job.workers <= self._free(type_):
            units = self._units(type_, workers, of=job)
            self._store.resize(job, workers, units=units)
            ask_for(self.folder_of(job.id) / RUN, workers, gpus_of(self._store.job(job.id)))
            self._journal.tell("resized", job=job.id, workers=workers, before=job.workers)

    def _free(self, type_: str) -> int:
        """Return how many workers of a type nobody holds, those that are still leaving included in what is held."""
        running = self._store.jobs(("running",))
        held = 0
        for job in running:
            if job.type == type_:
                present = self.progress[job.id].present() if job.id in self.progress else None
                held += max(job.workers, 0 if present is None else present[0])
        return self._settings.capacity.get(type_, 0) - held

    def _units(self, type_: str, workers: int, of: JobRecord) -> list[int]:
        """Return which units a job is to hold: its own first, those of workers that are still leaving among them."""
        taken = {unit for job in self._store.jobs(("running",)) if job.type == type_ for unit in job.units}
        free = (unit for unit in range(self._settings.capacity.get(type_, 0)) if unit not in taken)
        return [*of.units, *itertools.islice(free, max(0, workers - len(of.units)))]

    def _start(self, job: JobRecord, type_: str, workers: int) -> None:
        """Write down that a job runs, then start it."""
        units = self._units(type_, workers, of=job)
        begun = self._store.begin(job.id, type_=type_, workers=workers, units=units)
        if begun is None:
            return  # it was cancelled in this moment
        folder = self.folder_of(job.id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.progress.setdefault(job.id, JobProgress(folder))
        try:
            write_run_file(begun, folder, self._settings.hosts)
            self._launcher.start(task_of(begun, folder))
        except DovetailError as error:
            self._store.finish(begun, "failed", error=f"{error}; {error.hint}")
            self._journal.tell("job failed", job=job.id, error=str(error))
            return
        self._journal.tell("started", job=job.id, attempt=begun.attempt, type=type_, workers=workers)


def _held(jobs: Sequence[JobRecord]) -> dict[str, int]:
    """Return the workers that some jobs hold, by type."""
    held: dict[str, int] = {}
    for job in jobs:
        if job.type is not None:
            held[job.type] = held.get(job.type, 0) + job.workers
    return held
