"""Workloads made up from a seed: arrivals at three levels of contention, speed curves from the ring model.

The levels are those of the study of ring-architecture jobs: a job every 250, 500 or 1000 s on average on 64 workers.
Sizes spread log-normally and as far as in a sample of Microsoft's Philly cluster: there the mean is 4.3 times the
median and the longest job 72 times. On one V100 a job takes 5,800 s in the median and about six hours on average.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal, get_args

from dovetail.cost.speed import SpeedModel
from dovetail.simulator.traces.arrivals import Pattern, arrivals_s
from dovetail.simulator.traces.kinds import KINDS, PACE, ModelKind
from dovetail.spec.job import Job, LossCurve
from dovetail.spec.workload import NodeGroup, Workload

Contention = Literal["none", "moderate", "extreme"]
CONTENTIONS: tuple[Contention, ...] = get_args(Contention)

MEAN_GAP_S: dict[Contention, float] = {"none": 1000.0, "moderate": 500.0, "extreme": 250.0}
NUM_JOBS: dict[Contention, int] = {"none": 44, "moderate": 114, "extreme": 206}
REFERENCE_WORKERS = 64
"""The gaps are for so many workers; other clusters get them in proportion."""
MEDIAN_SECONDS_ON_ONE = 5_800.0
SPREAD = 1.7
"""Standard deviation of the logarithm of a job's size: the mean is exp(SPREAD^2 / 2) = 4.2 times the median."""
LONGEST = 72.0
"""The longest job, in medians."""
MAX_WORKERS = 16
LOSS_POINTS = 60
LOSS_NOISE = 0.01

DEFAULT_NODES = (NodeGroup(type="v100", workers=4, count=16),)


def make_workload(
    *,
    pattern: Pattern = "poisson",
    contention: Contention = "extreme",
    seed: int = 0,
    num_jobs: int | None = None,
    nodes: Sequence[NodeGroup] = DEFAULT_NODES,
    restart_s: float = 10.0,
    round_s: float | None = None,
    with_loss: bool = True,
) -> Workload:
    """Return a workload of jobs of several kinds, each with its speed curve, its size and its loss curve."""
    draw = random.Random(seed)  # noqa: S311
    count = NUM_JOBS[contention] if num_jobs is None else num_jobs
    num_workers = sum(group.workers * group.count for group in nodes)
    gap_s = MEAN_GAP_S[contention] * REFERENCE_WORKERS / num_workers
    times = arrivals_s(pattern, count=count, mean_gap_s=gap_s, draw=draw)
    jobs = tuple(
        make_job(
            f"job{number:0{len(str(count - 1))}d}",
            submit_s=round(submit_s, 3),
            kind=draw.choice(KINDS),
            seconds_on_one=MEDIAN_SECONDS_ON_ONE * min(math.exp(draw.gauss(0.0, SPREAD)), LONGEST),
            nodes=nodes,
            draw=draw if with_loss else None,
        )
        for number, submit_s in enumerate(times)
    )
    return Workload(nodes=tuple(nodes), jobs=jobs, restart_s=restart_s, round_s=round_s)


def make_job(
    job_id: str,
    *,
    submit_s: float,
    kind: ModelKind,
    seconds_on_one: float,
    nodes: Sequence[NodeGroup],
    max_workers: int = MAX_WORKERS,
    draw: random.Random | None = None,
    user: str | None = None,
) -> Job:
    """Return a job that would take `seconds_on_one` on one V100; `draw` adds a noisy loss curve."""
    on_v100 = kind.speed_model(node_workers=max(group.workers for group in nodes))
    steps = float(max(1, round(seconds_on_one * on_v100.steps_per_s(1))))
    speed = {
        group.type: _table(
            kind.speed_model(node_workers=group.workers, pace=PACE.get(group.type, 1.0)),
            min(max_workers, sum(other.workers * other.count for other in nodes if other.type == group.type)),
        )
        for group in nodes
    }
    return Job(
        id=job_id,
        submit_s=submit_s,
        work=steps,
        min_workers=1,
        max_workers=max_workers,
        speed=speed,
        kind=kind.name,
        user=user,
        loss=loss_curve(steps, draw) if draw is not None else None,
    )


def loss_curve(steps: float, draw: random.Random) -> LossCurve:
    """Return a noisy curve loss(k) = 1 / (c0 k + c1) + c2 that meets its target when the job is done."""
    first, last, floor = draw.uniform(1.5, 3.0), draw.uniform(0.08, 0.2), draw.uniform(0.05, 0.3)
    c1 = 1 / (first - floor) if first > floor else 1.0
    c0 = (1 / last - c1) / steps
    works = [steps * position / LOSS_POINTS for position in range(LOSS_POINTS + 1)]
    points = tuple(
        (round(work, 6), round((1 / (c0 * work + c1) + floor) * math.exp(draw.gauss(0.0, LOSS_NOISE)), 6))
        for work in works
    )
    return LossCurve(points=points, target=last + floor)


def _table(model: SpeedModel, max_workers: int) -> dict[str, float]:
    """Return the speeds on 1 to `max_workers`, each count given: between powers of two a ring can be slower."""
    return {str(count): round(model.steps_per_s(count), 6) for count in range(1, max_workers + 1)}
