"""A cluster as somebody finds it who did not watch it from the start: jobs that run already, and those that wait.

A driver of real jobs makes one for every decision, from what it keeps of them; columns, checks and changes are those
that the simulator uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.scheduler.cluster import Cluster, Start
from dovetail.scheduler.job_table import JobTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a job holds now, and what it held before; seconds are of the driver's own clock."""

    type: str | None
    """None while it waits."""
    workers: int
    since_s: float
    """When it was given its workers, or when it was last stopped."""
    attained: float
    """Worker-seconds up to `since_s`."""
    starts: int


def cluster_as_found(
    table: JobTable, jobs: Sequence[Found], now_s: float, *, taken: dict[str, int] | None = None
) -> Cluster:
    """Return the cluster with the table's jobs, all arrived, as they were found, in the table's order.

    `taken` are workers, by type, that somebody else holds for the moment.
    """
    cluster = Cluster(table)
    for row, found in enumerate(jobs):
        cluster.arrive(row)
        cluster.attained[row], cluster.stopped_s[row] = found.attained, found.since_s
        cluster.starts[row] = found.starts
        if found.type is not None and found.workers > 0:
            kind = table.types.index(found.type)
            cluster.hold(Start(row=row, kind=kind, workers=found.workers, batch=-1), found.since_s)
            cluster.starts[row] = found.starts
    for name, workers in (taken or {}).items():
        kind = table.types.index(name)
        cluster.capacity[kind] = max(0, int(cluster.capacity[kind]) - workers)
    cluster.advance(now_s)
    return cluster
