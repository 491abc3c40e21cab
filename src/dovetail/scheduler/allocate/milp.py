"""The same choice as a mixed-integer programme, for clusters too large for a table: HiGHS through SciPy."""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.allocate.options import Options
from dovetail.scheduler.view import IntArray

NODE_LIMIT = 20_000
"""Where HiGHS gives up on a proof; counted in nodes, not seconds, so that a decision can be repeated."""
GAP = 1e-6


def solve_milp(options: Options, capacity: IntArray, *, required: bool) -> IntArray | None:
    """Return for each job the option chosen (-1 = none), or None where nothing was found."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
    from scipy.sparse import coo_array, vstack  # noqa: PLC0415

    count = len(options.values)
    if count == 0:
        return None if required else np.full(options.num_jobs, -1, np.int64)
    positions = np.arange(count)
    jobs = options.jobs()
    one_a_job = coo_array((np.ones(count), (jobs, positions)), shape=(options.num_jobs, count))
    within = coo_array((options.workers.astype(float), (options.types, positions)), shape=(len(capacity), count))
    least = np.concatenate((np.full(options.num_jobs, 1.0 if required else 0.0), np.zeros(len(capacity))))
    most = np.concatenate((np.ones(options.num_jobs), capacity.astype(float)))
    scale = float(np.abs(options.values).max()) or 1.0
    found = milp(
        -options.values / scale,
        constraints=LinearConstraint(vstack([one_a_job, within]).tocsr(), least, most),
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": GAP},
    )
    if found.x is None:
        return None
    chosen = np.full(options.num_jobs, -1, np.int64)
    taken = np.flatnonzero(found.x > 0.5)
    chosen[jobs[taken]] = taken
    return chosen
