"""Workloads made up from a seed: arrivals at three levels of contention, speed curves from the ring model.

The levels are those of the study of ring-architecture jobs: a job every 250, 500 or 1000 s on average on 64 workers.
Sizes spread log-normally and as far as in a sample of Microsoft's Philly cluster: there the mean is 4.3 times the
median and the longest job 72 times. On one V100 a job takes 5,800 s in the median and about six hours on average.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dovetail.cost.speed import SpeedModel
from dovetail.spec.job import Job, LossCurve
from dovetail.spec.workload import NodeGroup, Workload

INSIDE_BYTE_S = 1 / 20e9
BETWEEN_BYTE_S = 1 / 10e9
"""Nodes linked at 100 Gb/s, four fifths of it to be had; twice that inside a node."""

REDUCE_BYTE_S = 1 / 200e9
LATENCY_S = 3e-5

PACE = {"v100": 1.0, "p100": 0.55, "t4": 0.35, "k80": 0.18, "a100": 2.2}
"""How fast a type computes against a V100, roughly; a type that is not listed counts as a V100."""
Pattern = Literal["poisson", "bursty", "diurnal"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
BURST_JOBS = 8
"""How many jobs a burst has on average."""
BURST_GAP_S = 5.0
"""The mean gap inside a burst."""
DAY_S = 86400.0
SWING = 0.8
"""How far the rate goes up by day and down by night, as a share of its mean."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """A model: its parameters, its global batch and the seconds one sample takes.

    Parameters are the models' published sizes, four bytes each. Seconds a sample on one V100 are rounded from public
    single-GPU figures in 32 bits; only the shape of the speed curve depends on them.
    """

    name: str
    parameters: float
    batch: int
    sample_s: float
    fixed_s: float = 0.01

    def speed_model(self, *, node_workers: int, pace: float = 1.0) -> SpeedModel:
        """Return how the model's speed depends on workers that compute at `pace` times a V100's."""
        return SpeedModel(
            batch=self.batch,
            sample_s=self.sample_s / pace,
            payload_bytes=4.0 * self.parameters,
            inside_byte_s=INSIDE_BYTE_S,
            between_byte_s=BETWEEN_BYTE_S,
            latency_s=LATENCY_S,
            reduce_byte_s=REDUCE_BYTE_S,
            fixed_s=self.fixed_s,
            node_workers=node_workers,
        )


KINDS = (
    ModelKind(name="resnet110", parameters=1.7e6, batch=512, sample_s=1 / 3500),
    ModelKind(name="mobilenet_v2", parameters=3.5e6, batch=512, sample_s=1 / 900),
    ModelKind(name="inception_v3", parameters=23.8e6, batch=512, sample_s=1 / 260),
    ModelKind(name="resnet50", parameters=25.6e6, batch=1024, sample_s=1 / 390),
    ModelKind(name="resnet101", parameters=44.5e6, batch=512, sample_s=1 / 230),
    ModelKind(name="alexnet", parameters=61e6, batch=2048, sample_s=1 / 3000),
    ModelKind(name="transformer", parameters=65e6, batch=512, sample_s=1 / 450),
    ModelKind(name="bert_base", parameters=110e6, batch=256, sample_s=1 / 110),
    ModelKind(name="vgg16", parameters=138e6, batch=512, sample_s=1 / 230),
)


BY_NAME = {kind.name: kind for kind in KINDS}


def arrivals_s(pattern: Pattern, *, count: int, mean_gap_s: float, draw: random.Random) -> list[float]:
    """Return the seconds at which `count` jobs arrive, the first at zero."""
    if pattern == "poisson":
        gaps = [draw.expovariate(1 / mean_gap_s) for _ in range(count - 1)]
    elif pattern == "bursty":
        gaps = [_bursty_gap_s(mean_gap_s, draw) for _ in range(count - 1)]
    else:
        return _diurnal(count, mean_gap_s, draw)
    times = [0.0]
    for gap_s in gaps:
        times.append(times[-1] + gap_s)
    return times


def _bursty_gap_s(mean_gap_s: float, draw: random.Random) -> float:
    """Return a gap: most are short, one in `BURST_JOBS` so long that the mean is right."""
    if draw.random() < 1 / BURST_JOBS:
        between_s = BURST_JOBS * mean_gap_s - (BURST_JOBS - 1) * min(BURST_GAP_S, mean_gap_s / 2)
        return draw.expovariate(1 / between_s)
    return draw.expovariate(1 / min(BURST_GAP_S, mean_gap_s / 2))


def _diurnal(count: int, mean_gap_s: float, draw: random.Random) -> list[float]:
    """Return arrivals whose rate follows a sine over the day, by thinning a faster Poisson process."""
    times: list[float] = []
    now_s = 0.0
    while len(times) < count:
        now_s += draw.expovariate((1 + SWING) / mean_gap_s)
        if draw.random() < (1 + SWING * math.sin(2 * math.pi * now_s / DAY_S)) / (1 + SWING):
            times.append(now_s)
    return [time_s - times[0] for time_s in times]


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
