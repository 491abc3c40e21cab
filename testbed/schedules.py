"""What comparing policies takes: jobs of the Philly trace made elastic, and decisions in rounds only.

Arrivals, models and durations are a table's, speed curves those of the ring model. A row says that a job took
`duration` on `gpus`. Its speed curve is that of its model, and its work is what it did in that time at that size, so it
takes as long as it did when it is given what it had.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from dovetail.scheduler.policy import Policy
from dovetail.scheduler.view import Allocation, ClusterView
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
    draw = random.Random(seed)
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


class OnlyInRounds:
    """Another policy that is asked at the start of each round; between, what runs goes on and nothing starts.

    The workload must give the same `round_s`, so that every round begins with a decision.
    """

    def __init__(self, policy: Policy, *, round_s: float, first_s: float = 0.0) -> None:
        """Ask `policy` at `first_s` and every `round_s` from then on."""
        self._policy = policy
        self._round_s = round_s
        self._first_s = first_s
        self._next_s = first_s

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the policy's answer at the start of a round, and what runs already at any other time."""
        if now_s < self._next_s:
            rows = view.running
            return Allocation(rows=rows, types=view.type[rows], workers=view.workers[rows])
        rounds = np.floor((now_s - self._first_s) / self._round_s + 1e-9) + 1
        self._next_s = self._first_s + rounds * self._round_s
        return self._policy.decide(view, now_s)
