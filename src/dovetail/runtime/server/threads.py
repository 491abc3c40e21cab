"""How many threads a server shares its rows among."""

from __future__ import annotations

import os

from dovetail.runtime.blueprint import Blueprint

MOST = 8
"""Where nobody says: more would wait for memory."""


def threads_of(blueprint: Blueprint) -> int:
    """Return `servers.threads`, or what this machine's cores leave to each server beside the workers that it may run.

    A worker is taken to be here, with all its threads; a worker on a GPU as well, as it feeds it.
    """
    servers = blueprint.run.servers
    if servers.threads is not None:
        return servers.threads
    if servers.cores is not None:
        return max(1, min(MOST, int(servers.cores)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    of_workers = sum(worker.count * worker.threads for worker in blueprint.run.workers)
    return max(1, min(MOST, (cores - of_workers) // servers.count))
