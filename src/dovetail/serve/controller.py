"""Sees to the jobs: looks at what runs, asks the policy, and has what it answers done.

Everything that is decided is in the store before it is done, and what was done is found in the jobs' folders. So one
turn of the loop is the same after a start as at any other time: nothing is kept here that a new daemon would miss.
What cannot be looked at is not known: nothing is decided about it. What goes wrong with one job is its own.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError
from dovetail.runtime.folder import ask_for
from dovetail.serve.ends import Ended, how_it_ended
from dovetail.serve.event_log import EventLog
from dovetail.serve.job_command import gpus_of, task_of, write_run_file
from dovetail.serve.launcher import JobAttempt, Launcher, NotNowError
from dovetail.serve.outlook import JobHistory
from dovetail.serve.progress import RUN, JobProgress
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobRecord, JobStore
from dovetail.serve.wishes import Wishes, held_by

LOOK_S = 0.2
SETTLED_S = 1.0
"""How long a new team works before its speed is taken."""
RESIZE_MOST_S = 60.0
"""How long a resize may take before the job is left with what it has."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""How long a job waits that could not be started, at first and at most: each time twice as long."""
DRAIN = "drain"


class Controller:
    """One thread that nobody else's work waits for."""

    def __init__(
        self,
        folder: Path,
        store: JobStore,
        launcher: Launcher,
        ask_policy: Callable[..., Wishes],
        settings: DaemonSettings,
    ) -> None:
        """Get ready; nothing is looked at before `run`."""
        self._folder, self._store, self._launcher = folder, store, launcher
        self._ask_policy, self._settings = ask_policy, settings
        self._journal = EventLog(folder / "log.jsonl")
        self._clock = store.clock
        self.progress: dict[str, JobProgress] = {}
        self._measured: dict[str, tuple[int, int]] = {}
        """The attempt and size of each job whose speed was taken last."""
        self._settled: dict[str, tuple[int, int]] = {}
        self._stopping_s: dict[tuple[str, int], float] = {}
        """Since when an attempt is asked in vain: a new daemon counts anew."""
        self._left_s: dict[tuple[str, int], float] = {}
        """The same, of attempts whose own process has left others behind."""
        self._deaf: set[tuple[str, int]] = set()
        """Attempts that ignored it when they were told to stop: they are told again."""
        self._held_back: dict[str, tuple[float, float]] = {}
        """Jobs that could not be started: when they may be tried again, and how long they waited for that."""
        self._unknown: set[str] = set()
        """Jobs that could not be looked at in this turn."""
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._decided_s = -self._settings.round_s
        self._is_due = self._is_asked = True
        self.decisions, self.decision_s = 0, 0.0
        self.last_decision: dict[str, Any] = {}
        """What was decided last, by what was told of whom."""
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

    def close(self) -> None:
        """Let go of the log, after the last turn."""
        self._journal.close()

    def run(self) -> None:
        """Turn until told to stop; what goes wrong with one turn is told and tried again."""
        self._journal.tell("serving", process=os.getpid(), policy=self._settings.policy)
        while not self._stopped.is_set():
            try:
                self.turn()
            except Exception as problem:  # a policy of somebody's own, a full disk: the jobs go on
                self._is_due = True
                self._complain(problem)
                self._stopped.wait(1.0)
            self._woken.wait(LOOK_S)
            self._woken.clear()

    def turn(self) -> None:
        """Look at every job that runs, then decide where there is a reason to."""
        self._unknown.clear()
        for job in self._store.jobs(("running",)):
            with self._apart(job):
                self._look_at(job)
        now_s = self._clock.now_s()
        is_round = now_s - self._decided_s >= self._settings.round_s
        is_again = any(self._decided_s < again_s <= now_s for again_s, _ in self._held_back.values())
        if self._is_due or is_round or is_again:
            self._is_due, self._is_asked = False, self._is_due
            self._decide()

    @contextmanager
    def _apart(self, job: JobRecord) -> Iterator[None]:
        """Have what goes wrong with one job keep nobody from the others."""
        try:
            yield
        except Exception as problem:
            self._unknown.add(job.id)
            self._is_due = True
            self._complain(problem, job)

    def _complain(self, problem: Exception, job: JobRecord | None = None) -> None:
        self.problems += 1
        error = f"{type(problem).__name__}: {problem}"
        self._journal.repeat("problem", job=None if job is None else job.id, error=error)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look_at(self, job: JobRecord) -> None:
        """See whether a job is still there, and how it does."""
        task = task_of(job, self.folder_of(job.id))
        found = self._launcher.find(task)
        if found.state == "unknown":
            self._not_known(job, found.detail)
            return
        progress = self.progress.setdefault(job.id, JobProgress(task.folder))
        try:
            progress.look(self._clock.now_s(), self._clock.day_ahead_s())
            ended = None
            if found.state not in ("running", "left"):
                got_on = progress.size() not in (0, job.heard)
                ended = how_it_ended(job, task, found, got_on=got_on)
        except OSError as error:
            self._not_known(job, str(error))
            return
        if ended is not None:
            if found.state == "never" and ended.state == "queued" and job.why is None:
                self._hold_back(job.id)
            self._close(job, ended, progress)
        elif found.state == "left":
            self._see_to_left(job, task)
        elif job.why is not None:
            self._see_to_stop(job, task)
        else:
            self._watch(job, progress)

    def _not_known(self, job: JobRecord, detail: str | None) -> None:
        """Leave a job alone that cannot be looked at, and look again."""
        self._unknown.add(job.id)
        self._journal.repeat("not known", job=job.id, error=detail)

    def _close(self, job: JobRecord, ended: Ended, progress: JobProgress) -> None:
        """Write down what became of a job that has no process any more."""
        figures = (progress.done, progress.total, progress.loss)
        self._store.finish(job, ended.state, error=ended.error, failures=ended.failures, figures=figures)
        self._journal.tell(f"job {ended.state}", job=job.id, attempt=job.attempt, error=ended.error)
        if ended.state != "queued":
            self.progress.pop(job.id, None)
            self._held_back.pop(job.id, None)
            self._measured.pop(job.id, None)
        self._settled.pop(job.id, None)
        for moments in (self._stopping_s, self._left_s):
            moments.pop((job.id, job.attempt), None)
        self._deaf.discard((job.id, job.attempt))
        self._is_due = True

    def _see_to_stop(self, job: JobRecord, task: JobAttempt) -> None:
        """Tell a job to stop until it has heard, and write that down; end it where it does not in its grace."""
        attempt, now_s = (job.id, job.attempt), self._clock.now_s()
        heard = "told"
        if job.told_s is None or attempt in self._deaf:
            heard = self._launcher.ask_to_stop(task)
            self._deaf.add(attempt) if heard == "ignored" else self._deaf.discard(attempt)
        since_s = job.told_s
        if since_s is None and heard == "nobody":  # who it is will be known in a moment
            since_s = self._stopping_s.setdefault(attempt, now_s)
        elif since_s is None:
            self._store.told(job.id)
            self._journal.tell("told to stop", job=job.id, why=job.why)
            return
        if now_s - since_s > self._settings.grace_s:
            self._end(job, task)

    def _see_to_left(self, job: JobRecord, task: JobAttempt) -> None:
        """Give what a job's own process has left behind the time that a stop has, then end it.

        Where the job is to stop those are told so; that it was told is not written, as it had ended before.
        """
        attempt, now_s = (job.id, job.attempt), self._clock.now_s()
        if attempt not in self._left_s and job.why is not None:
            self._launcher.ask_to_stop(task)
        since_s = self._left_s.setdefault(attempt, now_s)
        if now_s - since_s > self._settings.grace_s:
            self._end(job, task)

    def _end(self, job: JobRecord, task: JobAttempt) -> None:
        self._launcher.end(task)
        self._journal.repeat("ended by force", job=job.id, attempt=job.attempt, why=job.why)

    def _watch(self, job: JobRecord, progress: JobProgress) -> None:
        """Take the speed of a job that has worked a while, and see whether a change is done."""
        target = job.submission.target_loss
        if target is not None and progress.loss is not None and progress.loss <= target:
            self._store.tell_to_stop(job.id, "target")
            return
        since_s = job.since_s
        if job.submission.run is None:
            workers = job.workers
            if progress.heard_s <= since_s:
                return
        else:
            present = progress.present()
            if present is None:
                return
            workers, day_s = present
            if workers != job.workers and not job.submission.fixed_workers:
                self._see_to_size(job, workers)
                return
            since_s = min(max(since_s, day_s - self._clock.day_ahead_s()), self._clock.now_s())
        self._note_settled(job, since_s)
        if self._measured.get(job.id) == (job.attempt, workers):
            return
        speed = progress.speed_since(since_s + SETTLED_S, least_s=self._settings.measure_s)
        if speed is not None and speed > 0 and job.type is not None:
            self._measured[job.id] = (job.attempt, workers)
            self._store.add_speed(job.submission.speed_kind, job.type, workers, speed)
            self._is_due = True

    def _see_to_size(self, job: JobRecord, workers: int) -> None:
        """Ask again for the size that a job is to have; leave it with what it has where that does not come."""
        if self._clock.now_s() - job.since_s > RESIZE_MOST_S and workers > 0:
            self._store.resize(job, workers, detail=f"{job.workers} workers did not come")
            self._journal.tell("resize failed", job=job.id, wanted=job.workers, workers=workers)
        ask_for(self.folder_of(job.id) / RUN, job.workers, gpus_of(job))

    def _note_settled(self, job: JobRecord, since_s: float) -> None:
        """Keep how long a start or a resize took, once it is done."""
        now = (job.attempt, job.workers)
        before, self._settled[job.id] = self._settled.get(job.id), now
        self._held_back.pop(job.id, None)
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
        now_s = self._decided_s = self._clock.now_s()
        drain = self._store.setting(DRAIN)
        running = self._store.jobs(("running",))
        if drain == "now":
            for job in running:
                if job.why is None:
                    with self._apart(job):
                        self._store.tell_to_stop(job.id, "wait")
            return
        waiting = [] if drain else self._ready(self._store.jobs(("queued",)), now_s)
        there = [job for job in running if job.why is None and job.id not in self._unknown]
        others = [job for job in running if job.why is not None or job.id in self._unknown]
        jobs = sorted([*there, *waiting], key=lambda job: job.number)
        if not jobs:
            return
        why = "something changed" if self._is_asked else "it is time again"
        begun_s = time.perf_counter()
        wishes = self._ask_policy(jobs, self._progress(jobs), self._seen(), now_s, taken=held_by(others))
        self.decisions += 1
        seconds = time.perf_counter() - begun_s
        self.decision_s += seconds
        self.last_decision = self._told(wishes, now_s, seconds, why)
        for job_id, error in wishes.left_out.items():
            self.problems += 1
            self._journal.repeat("problem", job=job_id, error=error)
        for job in wishes.stops:
            with self._apart(job):
                self._store.tell_to_stop(job.id, "wait")
                self._journal.tell("stops for others", job=job.id)
        for job, type_, workers in wishes.gives:
            with self._apart(job):
                self._change(job, type_, workers)

    def _told(self, wishes: Wishes, now_s: float, seconds: float, why: str) -> dict[str, Any]:
        """Return a decision in plain values: what each job was to have, beside what the policy was told of it."""
        answers: dict[str, tuple[str | None, int]] = {job.id: (None, 0) for job in wishes.stops}
        answers |= {job.id: (type_, workers) for job, type_, workers in wishes.gives}
        jobs = []
        for told in wishes.told:
            type_, workers = answers.get(told["id"], (told["type"], told["workers"]))
            jobs.append({**told, "wanted_type": type_, "wanted_workers": workers})
        facts = {"t_s": now_s, "policy": self._settings.policy, "seconds": seconds, "why": why}
        return {**facts, "changes": len(answers), "jobs": jobs}

    def _ready(self, jobs: Sequence[JobRecord], now_s: float) -> list[JobRecord]:
        """Return those that may be started now."""
        return [job for job in jobs if self._held_back.get(job.id, (now_s, 0.0))[0] <= now_s]

    def _hold_back(self, job_id: str) -> None:
        """Have a job that could not be started wait, each time twice as long."""
        wait_s = min(max(FIRST_WAIT_S, 2.0 * self._held_back.get(job_id, (0.0, 0.0))[1]), LONGEST_WAIT_S)
        self._held_back[job_id] = (self._clock.now_s() + wait_s, wait_s)

    def _progress(self, jobs: Sequence[JobRecord]) -> dict[str, JobProgress]:
        """Return what is known of jobs, those that wait as well: they may have run before this daemon began."""
        for job in jobs:
            if job.attempt and job.id not in self.progress:
                with self._apart(job):
                    found = JobProgress(self.folder_of(job.id))
                    found.look(self._clock.now_s(), self._clock.day_ahead_s())
                    self.progress[job.id] = found
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
        elif workers - job.held <= self._free(type_):
            units = self._units(type_, workers, of=job)
            self._store.resize(job, workers, units=units)
            self._journal.tell("resized", job=job.id, workers=workers, before=job.workers)
            ask_for(self.folder_of(job.id) / RUN, workers, gpus_of(self._store.job(job.id)))

    def _free(self, type_: str) -> int:
        """Return how many workers of a type nobody holds, those that are still leaving included in what is held."""
        held = held_by(self._store.jobs(("running",))).get(type_, 0)
        return self._settings.capacity.get(type_, 0) - held

    def _units(self, type_: str, workers: int, of: JobRecord) -> list[int]:
        """Return which units a job is to hold: its own first, those of workers that are still leaving among them."""
        taken = {unit for job in self._store.jobs(("running",)) if job.type == type_ for unit in job.units}
        free = (unit for unit in range(self._settings.capacity.get(type_, 0)) if unit not in taken)
        return [*of.units, *itertools.islice(free, max(0, workers - len(of.units)))]

    def _start(self, job: JobRecord, type_: str, workers: int) -> None:
        """Write down that a job runs, then start it; what cannot be started now waits as it did."""
        folder = self.folder_of(job.id)
        progress = self.progress.setdefault(job.id, JobProgress(folder))
        units = self._units(type_, workers, of=job)
        begun = self._store.begin(job.id, type_=type_, workers=workers, units=units, heard=progress.size())
        if begun is None:
            return  # it was cancelled in this moment
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_run_file(begun, folder, self._settings.hosts)
            self._launcher.start(task_of(begun, folder))
        except (NotNowError, OSError) as error:
            self._hold_back(job.id)
            self._journal.repeat("not started", job=job.id, error=str(error))
            self._store.finish(begun, "queued", error=f"not started yet: {error}", failures=begun.failures)
            return
        except DovetailError as error:
            self._store.finish(begun, "failed", error=f"{error}; {error.hint}")
            self._journal.tell("job failed", job=job.id, error=str(error))
            return
        self._journal.tell("started", job=job.id, attempt=begun.attempt, type=type_, workers=workers)
