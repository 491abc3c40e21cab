"""What a policy is told of the daemon's jobs: the same columns, and the same estimators, as in a simulation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.scheduler.cluster import Cluster, FoundJob, cluster_as_found
from dovetail.scheduler.estimate.watching import Watching
from dovetail.scheduler.job_table import job_table
from dovetail.serve.progress import JobProgress
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobRecord
from dovetail.spec.job import Job as JobSpec
from dovetail.spec.job import LossCurve
from dovetail.spec.workload import Workload

PREFERRED = 2.0
"""How many times as fast as it is a type counts that a job prefers."""
START_S = 8.0
RESIZE_S = 2.0
"""What a start and a resize take before any was measured."""
NO_END = 1e9
"""Stands for the work of a job that does not say how much it has: it is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What has been learnt: speeds of kinds on sizes, sizes of jobs, and how long changes took."""

    speeds: Sequence[tuple[str, str, int, float]] = ()
    sizes: Sequence[tuple[str, float]] = ()
    starts_s: Sequence[float] = ()
    resizes_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A cluster and what is believed of its jobs; row n is `jobs[n]`."""

    jobs: Sequence[JobRecord]
    cluster: Cluster
    watching: Watching


def outlook(
    settings: DaemonSettings,
    jobs: Sequence[JobRecord],
    progress: Mapping[str, JobProgress],
    seen: JobHistory,
    now_s: float,
    *,
    taken: dict[str, int],
) -> Outlook:
    """Return what a policy decides on: `jobs` in order of submission, less the workers that are `taken`."""
    nodes, capacity = settings.nodes, settings.capacity
    begin_s = min(job.submitted_s for job in jobs)
    start_s = statistics.median(seen.starts_s) if seen.starts_s else START_S
    resize_s = statistics.median(seen.resizes_s) if seen.resizes_s else RESIZE_S
    specs = tuple(
        _spec(job, capacity, begin_s=begin_s, start_s=start_s, resize_s=_resize_s(job, settings, resize_s, start_s))
        for job in jobs
    )
    table = job_table(Workload(nodes=tuple(nodes), jobs=specs))
    found = [
        FoundJob(
            type=job.type if job.state == "running" else None,
            workers=job.workers,
            since_s=job.since_s - begin_s,
            attained=job.attained,
            starts=job.attempt,
        )
        for job in jobs
    ]
    cluster = cluster_as_found(table, found, now_s - begin_s, taken=taken)
    watching = Watching(table)
    for kind, type_, workers, speed in seen.speeds:
        if type_ in table.types and 0 < workers < table.speed.shape[2]:
            watching.measured_kind(kind, table.types.index(type_), workers, speed)
    for kind, seconds in seen.sizes:
        watching.finished_kind(kind, seconds)
    for row, job in enumerate(jobs):  # first: what a kind's speed is changes what others of it have left
        if job.id in progress:
            watching.worked(row, progress[job.id].done, job.attained_s(now_s))
    for row, job in enumerate(jobs):
        _believe(watching, row, job, progress.get(job.id))
    for row, job in enumerate(jobs):  # last: whoever is looked at for the first time has all of a kind worked out again
        for name in job.submission.prefer:
            watching.speed[row, table.types.index(name)] *= PREFERRED
    return Outlook(jobs=jobs, cluster=cluster, watching=watching)


def _resize_s(job: JobRecord, settings: DaemonSettings, resize_s: float, start_s: float) -> float:
    """Return what another size takes a job: a resize where its workers come and go, else a start."""
    return resize_s if job.state == "running" and settings.resizes(job.submission) else start_s


def _spec(job: JobRecord, capacity: Mapping[str, int], *, begin_s: float, start_s: float, resize_s: float) -> JobSpec:
    """Return a job as the scheduler describes it: which sizes it may have, on which types."""
    submission = job.submission
    fixed = submission.fixed_workers or job.pinned
    fewest = fixed or submission.min_workers
    speed = {}
    for name, count in capacity.items():
        most = fixed or min(count, submission.max_workers or count)
        if (not submission.types or name in submission.types) and fewest <= most <= count:
            speed[name] = {str(fewest): 1.0, str(most): 1.0}
    if job.state == "running" and job.type is not None and job.type in capacity:  # what it has it may keep
        sizes = sorted({job.workers, *map(int, speed.get(job.type, ()))})
        speed[job.type] = {str(size): 1.0 for size in sizes}
        fewest = min(fewest, job.workers)
    if not speed:  # it was pinned to more than there is any more: what it has, or the least of anything
        speed = {name: {"1": 1.0, str(count): 1.0} for name, count in capacity.items()}
        fewest = 1
    target = submission.target_loss
    return JobSpec(
        id=job.id,
        work=NO_END,
        speed=speed,
        submit_s=job.submitted_s - begin_s,
        min_workers=fewest,
        restart_s=start_s,
        resize_s=resize_s,
        weight=submission.priority,
        user=submission.user,
        kind=submission.speed_kind,
        loss=None if target is None else LossCurve(points=(), target=target),
    )


def _believe(watching: Watching, row: int, job: JobRecord, progress: JobProgress | None) -> None:
    """Say what a job has left, and what that tells of its speed."""
    done = 0.0 if progress is None else progress.done
    if progress is not None and progress.points:
        points = np.array(progress.points, float)
        watching.reported(row, np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1]))
    watching.estimate_left(row, done, waits=job.state == "queued")
    total = job.submission.total_samples if progress is None or progress.total is None else progress.total
    if job.submission.target_loss is None and total is not None:
        watching.told_left(row, total - done)
