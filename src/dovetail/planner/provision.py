"""Provisioning: the cheapest whole units for stages that are already chosen, exactly.

The cost of fixed stages at throughput x is hourly(x) / x, and hourly(x) rises only where some stage needs one unit
more. So walk the breakpoints upwards from the floor; leave out all x below hourly(x) / best, which cannot be cheaper;
stop where the relaxation to real units, whose hourly(x) / x never falls, is no cheaper than the best either. What the
stages pay for bytes between sites is the same at any speed: it is added at the end.
"""

from __future__ import annotations

import math

import numba as nb

from dovetail.planner.stage_kernel import STEP, egress_usd, real_units, seconds_on, stage_parts, whole_units


@nb.njit(cache=True)
def provision(arrays, types, lasts, count, min_samples_per_s, close_enough, units):  # type: ignore[no-untyped-def]
    """Write the cheapest units of `count` stages and return USD per hour over samples/s, or infinity for none.

    The walk ends when at most the fraction `close_enough` could still be saved.
    """
    parts = stage_list(arrays, types, lasts, count)
    if len(parts) == 0:
        return math.inf
    rate = _walk(arrays, types, parts, min_samples_per_s, close_enough, units)
    return rate + egress_rate(arrays, types, lasts, count)


@nb.njit(cache=True)
def stage_list(arrays, types, lasts, count):  # type: ignore[no-untyped-def]
    """Return the parts of every stage, cuts included, or an empty list where the stages cannot be."""
    parts = [(0.0, 0.0, 0.0, 0.0, 1.0)] * count
    first, left = 0, 0
    for s in range(count):
        t = types[s]
        if arrays.end_of_run[t, first] <= lasts[s]:
            return parts[:0]
        right = 0
        if s < count - 1:
            right = arrays.cut_class[t, types[s + 1]]
            if right < 0:
                return parts[:0]
        parts[s] = stage_parts(arrays, t, first, lasts[s], left, right)
        first, left = lasts[s] + 1, right
    return parts


@nb.njit(cache=True)
def egress_rate(arrays, types, lasts, count):  # type: ignore[no-untyped-def]
    """Return what stages that can be pay for bytes between sites, as USD per hour over samples/s."""
    usd = 0.0
    for s in range(count - 1):
        usd += egress_usd(arrays, lasts[s], arrays.cut_class[types[s], types[s + 1]])
    return usd * 3600 / arrays.batch


@nb.njit(cache=True)
def pace(arrays, types, lasts, units):  # type: ignore[no-untyped-def]
    """Return the samples/s of stages with their units: that of the slowest."""
    parts = stage_list(arrays, types, lasts, len(types))
    slowest_s = 0.0
    for s in range(len(parts)):
        slowest_s = max(slowest_s, seconds_on(parts[s], units[s]))
    return arrays.batch / slowest_s if slowest_s > 0 else math.inf


@nb.njit(cache=True)
def _walk(arrays, types, parts, min_samples_per_s, close_enough, best_units):  # type: ignore[no-untyped-def]
    """Walk the breakpoints of fixed stages upwards; keep the units of the cheapest."""
    count = len(parts)
    units = best_units.copy()
    used = arrays.limit.copy()
    best = math.inf
    samples_per_s = min_samples_per_s
    while True:
        target_s = arrays.batch / samples_per_s if samples_per_s > 0 else math.inf
        used[:] = 0
        hourly, relaxed_hourly, slowest_s = 0.0, 0.0, 0.0
        for s in range(count):
            t = types[s]
            needed = whole_units(parts[s], target_s)
            if needed > arrays.limit[t]:
                return best
            units[s] = int(needed)
            used[t] += units[s]
            if used[t] > arrays.limit[t]:
                return best
            hourly += arrays.price_per_hour[t] * needed
            relaxed_hourly += arrays.price_per_hour[t] * real_units(parts[s], target_s)
            slowest_s = max(slowest_s, seconds_on(parts[s], needed))
        if slowest_s == 0.0:
            best_units[:count] = units[:count]
            return 0.0
        if samples_per_s > 0 and relaxed_hourly / samples_per_s >= best * (1 - close_enough):
            return best
        reached = arrays.batch / slowest_s
        if hourly / reached < best:
            best = hourly / reached
            best_units[:count] = units[:count]
        samples_per_s = max(reached * (1 + STEP), hourly / best * (1 - STEP))


@nb.njit(cache=True)
def stages_of(assignment, types, lasts):  # type: ignore[no-untyped-def]
    """Cut a type per layer into maximal runs, written into `types` and `lasts`; return how many there are."""
    count = 0
    for i in range(assignment.size):
        if i + 1 == assignment.size or assignment[i + 1] != assignment[i]:
            types[count], lasts[count] = assignment[i], i
            count += 1
    return count
