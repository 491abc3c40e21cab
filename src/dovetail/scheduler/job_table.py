"""A workload as arrays: one row a job in order of submission, one layer a type, one column a number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.scheduler.view import FloatArray, IntArray
from dovetail.spec.job import Job, SpeedTable, allowed_workers
from dovetail.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """The jobs of a workload as columns; `jobs[row]` is the job behind a row."""

    jobs: tuple[Job, ...]
    types: tuple[str, ...]
    capacity: IntArray
    node_workers: IntArray
    speed: FloatArray
    batch_sizes: tuple[int, ...]
    batch_speed: tuple[FloatArray, ...]
    work: FloatArray
    submit_s: FloatArray
    restart_s: FloatArray
    resize_s: FloatArray
    """What other workers of its type take a job that runs."""
    weight: FloatArray
    spread_speed: FloatArray


def job_table(workload: Workload) -> JobTable:
    """Return a workload's jobs as columns, in order of submission (and of the file where that is equal)."""
    jobs = tuple(sorted(workload.jobs, key=lambda job: job.submit_s))
    types = workload.types
    capacity = workload.capacity
    largest = {name: max(group.workers for group in workload.nodes if group.type == name) for name in types}
    widest = max(
        min(span[-1], capacity[name]) for job in jobs for name in job.speed if len(span := job.workers_on(name)) > 0
    )
    sizes = sorted({int(size) for job in jobs for size in job.efficiency})
    return JobTable(
        jobs=jobs,
        types=types,
        capacity=np.array([capacity[name] for name in types], np.int64),
        node_workers=np.array([largest[name] for name in types], np.int64),
        speed=_speeds(jobs, [(job.speed, 1.0) for job in jobs], types, capacity, widest),
        batch_sizes=tuple(sizes),
        batch_speed=tuple(_batch_speeds(jobs, size, types, capacity, widest) for size in sizes),
        work=np.array([job.work for job in jobs], float),
        submit_s=np.array([job.submit_s for job in jobs], float),
        restart_s=np.array([workload.restart_s_of(job) for job in jobs], float),
        resize_s=np.array([workload.resize_s_of(job) for job in jobs], float),
        weight=np.array([job.weight for job in jobs], float),
        spread_speed=np.array([1.0 if job.spread_speed is None else job.spread_speed for job in jobs], float),
    )


def _batch_speeds(
    jobs: Sequence[Job], size: int, types: Sequence[str], capacity: dict[str, int], widest: int
) -> FloatArray:
    """Return speed times efficiency with one batch size, 0 for jobs that do not give it."""
    chosen = [job.efficiency.get(str(size)) for job in jobs]
    tables: list[tuple[SpeedTable, float]] = [
        ({}, 0.0) if batch is None else (batch.speed, batch.efficiency) for batch in chosen
    ]
    return _speeds(jobs, tables, types, capacity, widest)


def _speeds(
    jobs: Sequence[Job],
    tables: Sequence[tuple[SpeedTable, float]],
    types: Sequence[str],
    capacity: dict[str, int],
    widest: int,
) -> FloatArray:
    """Return speed[row, type, workers], each table times its factor; equal tables are worked out once."""
    speeds = np.zeros((len(jobs), len(types), widest + 1))
    seen: dict[tuple[object, ...], FloatArray] = {}
    for row, (job, (table, factor)) in enumerate(zip(jobs, tables, strict=True)):
        for kind, name in enumerate(types):
            curve = table.get(name)
            if curve is None:
                continue
            key = (name, job.min_workers, job.max_workers, factor, *curve.items())
            if key not in seen:
                seen[key] = _curve(job, table, name, factor, min(capacity[name], widest), widest)
            speeds[row, kind] = seen[key]
    return speeds


def _curve(job: Job, table: SpeedTable, name: str, factor: float, room: int, widest: int) -> FloatArray:
    """Return one table's speeds by number of workers, 0 where the job may not run."""
    speeds = np.zeros(widest + 1)
    span = allowed_workers(table, name, job.min_workers, job.max_workers)
    counts = [workers for workers in span if workers <= room]
    if counts:
        given = [int(count) for count in table[name]]
        speeds[counts] = factor * np.interp(counts, given, list(table[name].values()))
    return speeds
