"""Compiled arithmetic of one stage. Every other kernel of the planner stands on these functions."""

from __future__ import annotations

import math

import numba as nb

SLACK = 1e-12
"""Times may exceed their target by this fraction: what rounding can do, far below what anyone can measure."""
STEP = 1e-9
"""The least step to a higher throughput; two throughputs closer than this count as one."""


@nb.njit(cache=True, inline="always")
def units_for_memory(arrays, t, first, last):  # type: ignore[no-untyped-def]
    """Return the least number of units, one or more, on which layers first..last fit into memory, or infinity."""
    room = arrays.memory_bytes[t]
    if room == math.inf:
        return 1.0
    fixed = arrays.memory_fixed_bytes[t, last + 1] - arrays.memory_fixed_bytes[t, first]
    shared = arrays.memory_shared_bytes[t, last + 1] - arrays.memory_shared_bytes[t, first]
    return units_with_room(room, fixed, shared)


@nb.njit(cache=True, inline="always")
def units_with_room(room, fixed, shared):  # type: ignore[no-untyped-def]
    """Return the least units of a finite `room` each for bytes that each holds and bytes that they share."""
    room = room * (1 + SLACK) - fixed
    if shared <= room:
        return 1.0
    return math.ceil(shared / room * (1 - SLACK)) * 1.0 if room > 0 else math.inf


@nb.njit(cache=True, inline="always")
def stage_parts(arrays, t, first, last, left_class, right_class):  # type: ignore[no-untyped-def]
    """Return what decides the units of layers first..last on type t.

    (compute serial, compute shared, comm serial, comm shared) seconds, and the least units whose memory has room.
    """
    compute_serial = arrays.compute_serial_s[t, last + 1] - arrays.compute_serial_s[t, first]
    compute_shared = arrays.compute_shared_s[t, last + 1] - arrays.compute_shared_s[t, first]
    comm_serial = arrays.comm_serial_s[t, last + 1] - arrays.comm_serial_s[t, first]
    comm_shared = arrays.comm_shared_s[t, last + 1] - arrays.comm_shared_s[t, first]
    if left_class > 0:
        comm_shared += arrays.crossing_bytes[first - 1] * arrays.class_s_per_byte[left_class]
        comm_serial += arrays.class_latency_s[left_class]
        comm_serial += arrays.crossing_bytes[first - 1] * arrays.class_site_s_per_byte[left_class]
    if right_class > 0:
        comm_shared += arrays.crossing_bytes[last] * arrays.class_s_per_byte[right_class]
        comm_serial += arrays.class_latency_s[right_class]
        comm_serial += arrays.crossing_bytes[last] * arrays.class_site_s_per_byte[right_class]
    return compute_serial, compute_shared, comm_serial, comm_shared, units_for_memory(arrays, t, first, last)


@nb.njit(cache=True, inline="always")
def egress_usd(arrays, after_layer, cut_class):  # type: ignore[no-untyped-def]
    """Return what the cut behind a layer pays for one batch's bytes between sites."""
    return arrays.crossing_bytes[after_layer] * arrays.class_usd_per_byte[cut_class]


@nb.njit(cache=True, inline="always")
def seconds_on(parts, units):  # type: ignore[no-untyped-def]
    """Return max(compute, comm) of a stage on `units`."""
    return max(parts[0] + parts[1] / units, parts[2] + parts[3] / units)


@nb.njit(cache=True, inline="always")
def real_units(parts, target_s):  # type: ignore[no-untyped-def]
    """Return the least real number of units that bring a stage down to `target_s`, or infinity; memory is left out."""
    units = 0.0
    limit_s = target_s * (1 + SLACK)
    if parts[0] > limit_s or parts[2] > limit_s:
        return math.inf
    if parts[1] > 0:
        units = parts[1] / (target_s - parts[0]) if target_s > parts[0] else math.inf
    if parts[3] > 0:
        units = max(units, parts[3] / (target_s - parts[2]) if target_s > parts[2] else math.inf)
    return units


@nb.njit(cache=True, inline="always")
def whole_units(parts, target_s):  # type: ignore[no-untyped-def]
    """Return the least whole units that bring a stage down to `target_s` and fit into memory, or infinity.

    The subtraction inside `real_units` loses digits where the serial part is most of the target, so a result just
    above a whole number is checked against the stage's time itself.
    """
    units = real_units(parts, target_s)
    if units <= 1.0:
        return parts[4]
    if math.isinf(units):
        return units
    above = math.ceil(units)
    if above - units > 1 - 1e-6 and seconds_on(parts, above - 1) <= target_s * (1 + SLACK):
        above -= 1
    return max(above * 1.0, parts[4])
