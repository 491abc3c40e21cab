"""Provisioning as HeterPS describes it: balance the stages, find the best k_1 by Newton's method, round.

All stages are given the throughput of the first, so every k_i follows from k_1, and so does the cost:

    x(k_1) = B / time_1(k_1);    k_i(k_1) = the least real k with B / time_i(k) >= x
    cost(k_1) = sum_i p_i max(1, k_i) / x

Newton's method looks for a zero of the cost's slope in k_1, no lower than the floor asks for. Rounding is upwards, so
that the floor still holds. `provision` finds the best whole units instead, and proves it.
"""

from __future__ import annotations

import math

import numba as nb

from dovetail.planner.stage_kernel import real_units, seconds_on, whole_units

NEWTON_STEPS = 20


@nb.njit(cache=True)
def provision_as_in_paper(arrays, types, parts, min_samples_per_s, units):  # type: ignore[no-untyped-def]
    """Write the units of every stage and return USD per hour over samples/s, or infinity beyond a limit."""
    least = 1.0
    if min_samples_per_s > 0:
        least = max(1.0, real_units(parts[0], arrays.batch / min_samples_per_s))
    if least == math.inf:
        return math.inf
    k = least
    for _ in range(NEWTON_STEPS):
        width = max(1e-4 * k, 1e-6)
        below = _balanced_rate(arrays, types, parts, max(k - width, 1e-9))
        here = _balanced_rate(arrays, types, parts, k)
        above = _balanced_rate(arrays, types, parts, k + width)
        slope, bend = (above - below) / (2 * width), (above - 2 * here + below) / (width * width)
        if not (math.isfinite(slope) and math.isfinite(bend)) or bend <= 0:
            break
        moved = max(least, k - slope / bend)
        if abs(moved - k) <= 1e-6 * k:
            break
        k = moved
    target_s = seconds_on(parts[0], k)
    if min_samples_per_s > 0:
        target_s = min(target_s, arrays.batch / min_samples_per_s)
    return _rounded_rate(arrays, types, parts, target_s, units)


@nb.njit(cache=True)
def _balanced_rate(arrays, types, parts, k):  # type: ignore[no-untyped-def]
    """Return the cost per sample, in real units, of stages balanced to the throughput of the first on k units."""
    target_s = seconds_on(parts[0], k)
    hourly = 0.0
    for s in range(len(parts)):
        hourly += arrays.price_per_hour[types[s]] * max(1.0, real_units(parts[s], target_s))
    return hourly * target_s / arrays.batch


@nb.njit(cache=True)
def _rounded_rate(arrays, types, parts, target_s, units):  # type: ignore[no-untyped-def]
    """Round every stage up to whole units for `target_s`; return the cost per sample, or infinity beyond a limit."""
    used = arrays.limit.copy()
    used[:] = 0
    hourly, slowest_s = 0.0, 0.0
    for s in range(len(parts)):
        needed = whole_units(parts[s], target_s)
        if needed > arrays.limit[types[s]]:
            return math.inf
        units[s] = int(needed)
        used[types[s]] += units[s]
        if used[types[s]] > arrays.limit[types[s]]:
            return math.inf
        hourly += arrays.price_per_hour[types[s]] * needed
        slowest_s = max(slowest_s, seconds_on(parts[s], needed))
    return hourly * slowest_s / arrays.batch
