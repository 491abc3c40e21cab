"""Small makers of workloads, and the checks that every outcome must pass."""

import random
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from dovetail.spec.job import Job
from dovetail.spec.workload import Failure, NodeGroup, Workload

CURVE = {"1": 1.0, "2": 1.9, "4": 3.4, "8": 5.9}


def make_job(job_id="a", **given):
    return Job(**{"id": job_id, "work": 1000.0, "speed": {"v100": CURVE}, **given})


def make_workload(*jobs, nodes=(("v100", 4, 16),), **given):
    groups = tuple(NodeGroup(type=name, workers=workers, count=count) for name, workers, count in nodes)
    return Workload(nodes=groups, jobs=jobs, **given)


def random_workload(seed, *, max_jobs=12):
    """Return a small workload with everything in it: types, odd tables, rigid jobs, own restarts, rounds, failures."""
    draw = random.Random(seed)
    names = ["fast", "slow", "odd"][: draw.randint(1, 3)]
    nodes = tuple(NodeGroup(type=name, workers=draw.choice([1, 2, 4]), count=draw.randint(1, 3)) for name in names)
    capacity = {name: sum(g.workers * g.count for g in nodes if g.type == name) for name in names}
    jobs = []
    for number in range(draw.randint(1, max_jobs)):
        chosen = draw.sample(names, draw.randint(1, len(names)))
        table = {}
        for name in chosen:
            counts = sorted(draw.sample(range(1, 10), draw.randint(1, 4)))
            counts[0] = draw.randint(1, min(counts[0], capacity[name]))
            table[name] = {str(count): draw.uniform(0.2, 4.0) for count in counts}
        least = min(int(next(iter(curve))) for curve in table.values())
        jobs.append(
            Job(
                id=f"j{number}",
                submit_s=draw.choice([0.0, draw.uniform(0, 300)]),
                work=draw.uniform(1, 400),
                min_workers=draw.randint(1, least),
                max_workers=draw.choice([None, 9]),
                speed=table,
                restart_s=draw.choice([None, 0.0, draw.uniform(0, 30)]),
                weight=draw.choice([1.0, 2.0]),
                spread_speed=draw.choice([None, None, 0.7]),
            )
        )
    failures = tuple(
        Failure(
            t_s=draw.uniform(0, 400), type=draw.choice(names), nodes=draw.randint(1, 3), down_s=draw.uniform(1, 300)
        )
        for _ in range(draw.choice([0, 0, 1, 3]))
    )
    return Workload(
        nodes=nodes,
        jobs=tuple(jobs),
        restart_s=draw.choice([0.0, 10.0]),
        round_s=draw.choice([None, 60.0]),
        failures=failures,
    )


def check_replay(workload, trial):
    """Replay the events by the rules alone and refuse every breach of them."""
    jobs = {job.id: job for job in workload.jobs}
    capacity = workload.capacity
    held: dict[str, tuple[str, int, float]] = {}
    used: dict[str, int] = defaultdict(int)
    done: dict[str, float] = defaultdict(float)
    starts: dict[str, int] = defaultdict(int)
    last_s: dict[str, float] = {}
    now_s = -np.inf
    for change in trial.changes:
        assert change.t_s >= now_s, "events run backwards"
        now_s = change.t_s
        job = jobs[change.job]
        if change.job in held:
            name, workers, since_s = held.pop(change.job)
            used[name] -= workers
            worked_s = max(0.0, now_s - since_s - workload.restart_s_of(job))
            done[change.job] += worked_s * interpolate(job.speed[name], workers)
        if change.workers:
            assert now_s >= job.submit_s, "a job ran before it arrived"
            assert change.workers in job.workers_on(change.type), "a size the job may not use"
            held[change.job] = (change.type, change.workers, now_s)
            used[change.type] += change.workers
            assert used[change.type] <= capacity[change.type], "more workers than there are"
            starts[change.job] += 1
        last_s[change.job] = now_s
    assert not held
    assert {job.id for job in trial.outcome.jobs} == set(jobs)
    for outcome in trial.outcome.jobs:
        assert outcome.finish_s == last_s[outcome.id]
        assert outcome.restarts == starts[outcome.id] - 1
        if jobs[outcome.id].spread_speed is None:
            assert done[outcome.id] == pytest.approx(jobs[outcome.id].work, rel=1e-6)
        else:
            assert done[outcome.id] >= jobs[outcome.id].work * (1 - 1e-6)


def interpolate(curve: Mapping[str, float], workers: int) -> float:
    """Return the speed with `workers` from a table: linear between two given counts, 0 beyond them."""
    before: tuple[int, float] | None = None
    for count_text, speed in curve.items():
        count = int(count_text)
        if count == workers:
            return speed
        if count > workers:
            if before is None:
                return 0.0
            share = (workers - before[0]) / (count - before[0])
            return before[1] + share * (speed - before[1])
        before = (count, speed)
    return 0.0
