"""The default: the exact optimum, at every decision, of the delay that is worked off a second.

What a unit of a job's work is worth is its costate, the delay that it causes all jobs together in the fluid optimum
(`costates`: a table, or prices on clusters too large for one). Each offer's value follows from it, restarts included
(`values.change_values`), and of all allocations that fit, the one with the greatest sum of values is found exactly
(`allocate`). Jobs that are overdue go first (`values.must_run`), so nobody starves.

The knob says what a second of each job's delay counts (`values.delay_weights`): all the same for the mean completion
time (0); towards the makespan (1), more for jobs that are old already and for those that would be last and alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.scheduler.allocate import JobOptions, best_choice
from dovetail.scheduler.default.costates import costates, last_first, ordered_costates, priced_costates
from dovetail.scheduler.default.offers import Offers, can_run, offers_of
from dovetail.scheduler.default.values import JobTimes, change_values, delay_weights, job_times, must_run, next_end_s
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray

DEFAULT_KNOB = 0.2
TABLE_WORK = 24_000_000
"""Offers times rooms up to which costates come from a table: about ten milliseconds."""
ORDER_WORK = 1_000_000
"""The same, times jobs, up to which a better order is looked for: about a millisecond for each round of swaps."""


class Dovetail:
    """The allocation that works off the most delay a second."""

    def __init__(self, knob: float = DEFAULT_KNOB) -> None:
        """Set the knob: 0 = mean completion time, 1 = makespan."""
        self.knob = knob

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the allocation of greatest value."""
        view = replace(view, rows=can_run(view))
        rows = view.rows
        if not len(rows):
            return Allocation(rows=rows, types=rows, workers=rows)
        offers = _affordable_offers(view)
        times = job_times(view, offers, now_s)
        weights = delay_weights(times, view.weight[rows], self.knob)
        worth = work_worth(view, offers, times, weights)
        values = change_values(
            offers.first,
            offers.types,
            offers.speeds,
            offers.held,
            worth,
            view.left[rows],
            view.restart_s[rows],
            view.resize_s[rows],
            next_end_s(view, offers, now_s),
        )
        first_of_all = must_run(offers, times, view.capacity)
        if first_of_all.any():
            values = values + 2.0 * offers.most(values).sum() * first_of_all[offers.jobs()]
        options = JobOptions(first=offers.first, types=offers.types, workers=offers.workers, values=values)
        chosen = best_choice(options, view.capacity)
        given = np.flatnonzero(chosen >= 0)
        taken = chosen[given]
        return Allocation(
            rows=rows[given],
            types=offers.types[taken],
            workers=offers.workers[taken],
            batches=offers.batches[taken] if view.batch_speed else None,
        )


def work_worth(view: ClusterView, offers: Offers, times: JobTimes, weights: FloatArray) -> FloatArray:
    """Return the costate of every job; the speed of one that waits counts its start."""
    runs = offers.held >= 0
    left, restart_s = view.left[view.rows], view.restart_s[view.rows]
    again_s = np.where(runs, restart_s, 0.0)
    jobs = offers.jobs()
    speeds = left[jobs] / (np.where(runs, 0.0, restart_s)[jobs] + left[jobs] / offers.speeds)
    order = last_first(times.least_s, again_s)
    known = (order, offers.first, offers.types, offers.workers, speeds, weights, view.capacity)
    work = len(speeds) * float(np.prod(view.capacity + 1.0))
    if work > TABLE_WORK:
        return priced_costates(*known)
    if work * len(order) > ORDER_WORK:
        return costates(*known)
    return ordered_costates(*known, left, again_s)


def _affordable_offers(view: ClusterView) -> Offers:
    """Return every size where a table can hold them, else the sensible ones."""
    most = float(
        len(view.rows) * np.minimum(view.capacity, view.speed.shape[2] - 1).sum() * np.prod(view.capacity + 1.0)
    )
    if most <= TABLE_WORK:
        return offers_of(view, all_sizes=True)
    return offers_of(view, all_sizes=False)
