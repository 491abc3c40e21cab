"""Workloads that look like real clusters: measured speed curves, work from minutes to days, restarts, bursts, failures.

Speed curves are Gavel's measured ones (three GPU types, workers on one host or spread) and those of PipeDream's
measured models over wires of 10 to 100 Gb/s: many saturate, some fall, a few are faster than linear. Work spreads
log-normally from minutes to days of one GPU. What a seed draws depends on nothing else.

The kinds of curves are split in two: policies were developed on one half, and reported on the other.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dovetail.cost.speed import SpeedModel
from dovetail.simulator.traces.make import KINDS, Pattern, arrivals_s, loss_curve, make_job
from dovetail.simulator.traces.read import parse_nodes
from dovetail.spec.job import Job
from dovetail.spec.workload import Failure, Workload

Half = Literal["development", "held out", "all"]
Make = Callable[[int], Workload]

NODES = "v100:4x16"
NUM_JOBS = 240
MEDIAN_S, SPREAD, LONGEST_S = 1800.0, 1.7, 2 * 86400.0
"""Seconds on one worker: the median, the standard deviation of the logarithm, and the most."""
WIRES_BYTES_PER_S = (1e9, 2.5e9, 10e9)
BATCH, MAX_WORKERS = 256, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A measured kind of job: its speed by number of workers."""

    name: str
    speed: Mapping[str, float]


@functools.cache
def gavel_curves(folder: Path) -> tuple[Curve, ...]:
    """Return every curve of Gavel's with at least three sizes, each GPU type and placement on its own."""
    tables = json.loads((folder / "gavel/steps_per_s.json").read_text())
    found = []
    for type_name, table in sorted(tables.items()):
        names = sorted({match[1] for key in table if (match := re.match(r"\('(.*)', \d+\)", key))})
        for name in names:
            speeds = {str(size): _alone(table.get(f"('{name}', {size})")) for size in (1, 2, 4, 8)}
            speed = {size: value for size, value in speeds.items() if value > 0}
            if len(speed) >= 3 and "1" in speed:
                found.append(Curve(name=f"{name} {type_name}", speed=speed))
    return tuple(found)


def _alone(entry: object) -> float:
    """Return the steps a second of a job that shares its workers with nobody."""
    value = entry.get("null") if isinstance(entry, dict) else entry
    return float(value) if isinstance(value, int | float) else 0.0


@functools.cache
def pipedream_curves(folder: Path) -> tuple[Curve, ...]:
    """Return the curve of each of PipeDream's models over each wire: its measured layers, its parameters in a ring."""
    found = []
    for path in sorted((folder / "pipedream").glob("*.txt")):
        lines = [line for line in path.read_text().splitlines() if "forward_compute_time" in line]
        lines = [line for line in lines if "-- Input" not in line]
        batch_s = sum(_field(line, "forward_compute_time") + _field(line, "backward_compute_time") for line in lines)
        payload_bytes = sum(_field(line, "parameter_size") for line in lines)
        for wire in WIRES_BYTES_PER_S:
            model = SpeedModel(
                batch=BATCH,
                sample_s=batch_s / 1000 / BATCH,
                payload_bytes=payload_bytes,
                inside_byte_s=1 / 10e9,
                between_byte_s=1 / wire,
                latency_s=3e-5,
                reduce_byte_s=1 / 200e9,
                fixed_s=0.01,
                node_workers=4,
            )
            speed = {str(size): model.steps_per_s(size) for size in range(1, MAX_WORKERS + 1)}
            found.append(Curve(name=f"{path.stem} {8 * wire / 1e9:g} Gb/s", speed=speed))
    return tuple(found)


def _field(line: str, name: str) -> float:
    """Return a number of one of PipeDream's lines."""
    found = re.search(rf"{name}=([\d.]+)", line)
    return float(found[1]) if found else 0.0


def curves(folder: Path, half: Half) -> tuple[Curve, ...]:
    """Return the measured curves of one half: models alternate, with all their types, batches and wires."""
    every = (*gavel_curves(folder), *pipedream_curves(folder))
    models = sorted({curve.name.split(" ")[0] for curve in every})
    wanted = {"development": models[::2], "held out": models[1::2], "all": models}[half]
    return tuple(curve for curve in every if curve.name.split(" ")[0] in wanted)


def measured(
    folder: Path,
    *,
    half: Half = "all",
    load: float = 1.5,
    restart_s: float = 30.0,
    pattern: Pattern = "poisson",
    num_jobs: int = NUM_JOBS,
    failures: bool = False,
    with_loss: bool = False,
) -> Make:
    """Return workloads of measured curves that ask for `load` of 64 workers while jobs arrive.

    The load counts each job's work where it is most efficient: above one nothing can keep up with the arrivals.
    """
    kinds = curves(folder, half)

    def make(seed: int) -> Workload:
        draw = random.Random(f"{seed} {half}")
        nodes = parse_nodes(NODES)
        num_workers = sum(group.workers * group.count for group in nodes)
        drawn = [(draw.choice(kinds), work_s(draw)) for _ in range(num_jobs)]
        span_s = sum(seconds for _, seconds in drawn) / (load * num_workers)
        times = arrivals_s(pattern, count=num_jobs, mean_gap_s=span_s / num_jobs, draw=draw)
        jobs = [
            _job(f"job{number:03d}", curve, seconds, submit_s, draw if with_loss else None)
            for number, ((curve, seconds), submit_s) in enumerate(zip(drawn, times, strict=True))
        ]
        return Workload(
            nodes=nodes,
            jobs=tuple(jobs),
            restart_s=restart_s,
            failures=_failures(times[-1], draw) if failures else (),
        )

    return make


def work_s(draw: random.Random) -> float:
    """Return a job's size in seconds on one worker: minutes to days."""
    return min(MEDIAN_S * math.exp(draw.gauss(0.0, SPREAD)), LONGEST_S)


def _job(name: str, curve: Curve, seconds: float, submit_s: float, draw: random.Random | None) -> Job:
    """Return a job that takes `seconds` on each worker where it is most efficient."""
    work = seconds * max(speed / int(size) for size, speed in curve.speed.items())
    return Job(
        id=name,
        submit_s=round(submit_s, 3),
        work=work,
        speed={"v100": dict(curve.speed)},
        kind=curve.name,
        loss=loss_curve(work, draw) if draw is not None else None,
    )


def _failures(until_s: float, draw: random.Random) -> tuple[Failure, ...]:
    """Return a node down for ten minutes to an hour about every two hours, a rack of four about every eight."""
    found: Sequence[tuple[float, int]] = [(7200.0, 1), (28800.0, 4)]
    failures = []
    for gap_s, nodes in found:
        now_s = draw.expovariate(1 / gap_s)
        while now_s < until_s:
            failures.append(Failure(t_s=now_s, type="v100", nodes=nodes, down_s=draw.uniform(600.0, 3600.0)))
            now_s += draw.expovariate(1 / gap_s)
    return tuple(failures)


def wide(*, load: float, restart_s: float = 30.0, num_jobs: int = 160) -> Make:
    """Return workloads of the ring model's curves whose jobs may use all 64 workers, work from minutes to days."""

    def make(seed: int) -> Workload:
        draw = random.Random(f"wide {seed}")
        nodes = parse_nodes(NODES)
        num_workers = sum(group.workers * group.count for group in nodes)
        sizes = [work_s(draw) for _ in range(num_jobs)]
        gap_s = sum(sizes) / (load * num_workers) / num_jobs
        times = arrivals_s("poisson", count=num_jobs, mean_gap_s=gap_s, draw=draw)
        jobs = tuple(
            make_job(
                f"job{number:03d}",
                submit_s=submit_s,
                kind=draw.choice(KINDS),
                seconds_on_one=seconds,
                nodes=nodes,
                max_workers=num_workers,
            )
            for number, (submit_s, seconds) in enumerate(zip(times, sizes, strict=True))
        )
        return Workload(nodes=nodes, jobs=jobs, restart_s=restart_s)

    return make
