"""Philly arrivals with elastic jobs: a table's arrivals, models and durations, speed curves from the ring model.

A row says that a job took `duration` on `gpus`. Its speed curve is that of its model, and its work is what it did in
that time at that size, so it takes as long as it did when it is given what it had.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dovetail.simulator.traces.make import BY_NAME, KINDS, MAX_WORKERS, ModelKind, make_job
from dovetail.simulator.traces.table import TableJob
from dovetail.spec.workload import NodeGroup, Workload


def elastic_workload(
    rows: Sequence[TableJob],
    *,
    nodes: Sequence[NodeGroup],
    load: float,
    seed: int,
    stretch: float = 1.0,
    restart_s: float = 10.0,
    with_loss: bool = True,
) -> Workload:
    """Return a random sample of a table's jobs that asks for `load` of the cluster on average over the table's span.

    `stretch` multiplies arrivals and durations alike: the load stays, a restart weighs less.
    """
    draw = random.Random(seed)  # noqa: S311
    num_workers = sum(group.workers * group.count for group in nodes)
    span_s = max(row.submit_s for row in rows) - min(row.submit_s for row in rows)
    asked = sum(_seconds_on_one(row, nodes) for row in rows) / span_s
    share = load * num_workers / asked
    chosen = [row for row in rows if draw.random() < share]
    start_s = min(row.submit_s for row in chosen)
    jobs = tuple(
        make_job(
            row.id,
            submit_s=stretch * (row.submit_s - start_s),
            kind=_kind(row),
            seconds_on_one=stretch * _seconds_on_one(row, nodes),
            nodes=nodes,
            draw=draw if with_loss else None,
            user=row.user,
        )
        for row in chosen
    )
    return Workload(nodes=tuple(nodes), jobs=jobs, restart_s=restart_s)


def _kind(row: TableJob) -> ModelKind:
    """Return the model of a row, or one of ours by its id where it names none we know."""
    return BY_NAME.get(row.kind or "") or KINDS[sum(row.id.encode()) % len(KINDS)]


def _seconds_on_one(row: TableJob, nodes: Sequence[NodeGroup]) -> float:
    """Return what a row's work takes one V100."""
    model = _kind(row).speed_model(node_workers=max(group.workers for group in nodes))
    size = min(row.gpus, MAX_WORKERS)
    return row.duration_s * model.steps_per_s(size) / model.steps_per_s(1)
