"""One option a job at most, the greatest sum of values: a table while small, prices and HiGHS when large.

Small enough, dynamic programming answers at once. Otherwise prices for workers rule out most options with proof; jobs
with one option left are settled, and what remains goes to the table again or to HiGHS. Where no table is affordable, a
choice within a ten-thousandth of its bound is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.errors import DovetailError
from dovetail.scheduler.allocate.bound import price_workers, within_gap
from dovetail.scheduler.allocate.knapsack import IMPOSSIBLE, solve_knapsack
from dovetail.scheduler.view import BoolArray, FloatArray, IntArray

NODE_LIMIT = 20_000
"""Where HiGHS gives up on a proof; counted in nodes, not seconds, so that a decision can be repeated."""
GAP = 1e-6
AT_ONCE = 2_000_000
"""Options times states up to which the table is used at once: about a millisecond, what prices take."""
TABLE_WORK = 24_000_000
"""Options times states up to which the table is used for what prices leave: about ten milliseconds."""
TABLE_CELLS = 20_000_000
"""Jobs times states that a table may have at all: it keeps eight bytes for each."""
EXACT_ENOUGH = 1e-9
NEAR_ENOUGH = 1e-4
"""How far below its bound a choice may stay where no table is affordable."""
MOST_FOR_HIGHS = 4_000
"""Options that HiGHS is asked to choose from: about a second. Beyond, the best choice that prices led to stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of n jobs, flat and grouped by job: job j has those from `first[j]` up to `first[j + 1]`."""

    first: IntArray
    types: IntArray
    workers: IntArray
    values: FloatArray

    @property
    def num_jobs(self) -> int:
        """How many jobs there are."""
        return len(self.first) - 1

    def jobs(self) -> IntArray:
        """Return for each option the job it belongs to."""
        return np.repeat(np.arange(self.num_jobs), np.diff(self.first))

    def only(self, kept: BoolArray) -> tuple[JobOptions, IntArray]:
        """Return the options that are kept, and where each stood before."""
        where = np.flatnonzero(kept)
        counts = np.bincount(self.jobs()[where], minlength=self.num_jobs)
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return (
            JobOptions(first=first, types=self.types[where], workers=self.workers[where], values=self.values[where]),
            where,
        )


def solve_milp(options: JobOptions, capacity: IntArray, *, required: bool) -> IntArray | None:
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


def best_choice(options: JobOptions, capacity: IntArray, *, required: bool = False) -> IntArray:
    """Return for each job the position of the option chosen, -1 for none; `required` serves every job or raises."""
    if options.num_jobs == 0:
        return np.empty(0, np.int64)
    if _is_small(options, capacity, AT_ONCE):
        return _by_table(options, capacity, required=required)
    if required:
        chosen = solve_milp(options, capacity, required=True)
        if chosen is None:
            raise _cannot_serve_all()
        return chosen
    bound, prices, incumbent, value = price_workers(
        options.first, options.types, options.workers, options.values, capacity
    )
    gap = (bound - value) * (1 + EXACT_ENOUGH) + EXACT_ENOUGH * abs(bound)
    if bound - value <= EXACT_ENOUGH * abs(bound):
        return incumbent
    kept, may_wait = within_gap(options.first, options.types, options.workers, options.values, prices, gap)
    return _on_what_remains(options, capacity, kept == 1, may_wait == 1, incumbent, value, gap)


def _on_what_remains(
    options: JobOptions,
    capacity: IntArray,
    kept: BoolArray,
    may_wait: BoolArray,
    incumbent: IntArray,
    value: float,
    gap: float,
) -> IntArray:
    """Return the best choice among the options kept, or the incumbent where that is as good."""
    jobs = options.jobs()
    per_job = np.bincount(jobs[kept], minlength=options.num_jobs)
    settled = (per_job == 1) & ~may_wait
    fixed = np.flatnonzero(kept & settled[jobs])
    room = capacity.copy()
    np.subtract.at(room, options.types[fixed], options.workers[fixed])
    if (room < 0).any():
        return incumbent  # nothing better than the incumbent exists
    fits = options.workers <= room[options.types]
    rest, where = options.only(kept & ~settled[jobs] & fits)
    if _is_small(rest, room, TABLE_WORK):
        found: IntArray | None = _by_table(rest, room, required=False)
    elif len(rest.values) <= MOST_FOR_HIGHS and gap > NEAR_ENOUGH * abs(value):
        found = solve_milp(rest, room, required=False)
    else:
        found = None
    if found is None:
        return incumbent
    chosen = np.where(found >= 0, where[found] if len(where) else -1, -1)
    chosen[jobs[fixed]] = fixed
    return chosen if options.values[chosen[chosen >= 0]].sum() > value else incumbent


def _is_small(options: JobOptions, capacity: IntArray, most_work: int) -> bool:
    """Say whether a table over all types is affordable."""
    states = float(np.prod(capacity + 1.0))
    return states * max(len(options.values), 1) <= most_work and states * options.num_jobs <= TABLE_CELLS


def _by_table(options: JobOptions, capacity: IntArray, *, required: bool) -> IntArray:
    """Return the best choice by dynamic programming."""
    chosen, total = solve_knapsack(options.first, options.types, options.workers, options.values, capacity, required)
    if required and total <= IMPOSSIBLE:
        raise _cannot_serve_all()
    return chosen


def _cannot_serve_all() -> DovetailError:
    """Return the complaint that there are not enough workers for every job."""
    return DovetailError("there are not enough workers for every job", hint="let some of them wait")
