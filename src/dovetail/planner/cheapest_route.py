"""Dynamic programming: the cheapest stages that reach a given throughput, limits aside.

For a fixed throughput every stage needs its own least units, and the hourly price is a sum over stages, so from the
last layer to the first

    start(i, t, c) = min over j, d of  price_t units(i..j on t, cuts c and d) + end(j, t, d)
    end(j, t, d)   = min over u != t whose cut with t is of class d of  start(j + 1, u, d)

where `c` and `d` are the classes of the cuts at the stage's two ends. A cut between sites adds what its bytes cost in
an hour at that throughput. `start(0, t, free)` over t is the answer. With `rounds` > 0 the functions carry the number
of stages still allowed, and stages are counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.stage_kernel import SLACK, egress_usd, real_units, stage_parts, units_for_memory, whole_units

BLOCK = 32
"""How many stage ends are priced between two looks at whether longer stages can pay."""
TINY = 1e-300
ALMOST_WHOLE = 1e-10


class Workspace(NamedTuple):
    """What the dynamic programme fills; `rounds` is 0 where stages are not counted."""

    rounds: int
    start: Floats  # [R, T, C, L] cheapest from a stage that starts here
    start_last: Ints  # [R, T, C, L] where that stage ends
    start_class: Ints  # [R, T, C, L] the class of the cut behind it
    end: Floats  # [R, T, C, L] cheapest of what follows a stage that ends here
    end_type: Ints  # [R, T, C, L] the type that follows


def workspace(arrays: ProblemArrays, max_stages: int | None) -> Workspace:
    """Return room for one problem; `max_stages` of at least the number of layers limits nothing."""
    rounds = 0 if max_stages is None or max_stages >= arrays.num_layers else max_stages
    shape = (max(rounds, 1), arrays.num_types, len(arrays.class_latency_s), arrays.num_layers)
    return Workspace(
        rounds=rounds,
        start=np.empty(shape),
        start_last=np.zeros(shape, dtype=np.int64),
        start_class=np.zeros(shape, dtype=np.int64),
        end=np.empty(shape),
        end_type=np.zeros(shape, dtype=np.int64),
    )


@nb.njit(cache=True)
def cheapest(arrays, work, weight, target_s, share):  # type: ignore[no-untyped-def]
    """Fill `work` and return the least sum of weight x units, and of egress, over stages that each take `target_s`.

    A stage counts as max(share * whole units, real units): with share = 1 that is whole units, with share = 0 the
    relaxation to real ones, and in between a bound for a range of throughputs (see `Hourly.bound_between`).
    """
    num_layers, num_types = arrays.crossing_bytes.size, weight.size
    num_rounds = max(work.rounds, 1)
    work.end[:, :, 0, num_layers - 1] = 0.0  # nothing follows the last layer
    costs = np.empty(num_layers)
    for i in range(num_layers - 1, -1, -1):
        for r in range(num_rounds):
            for t in range(num_types):
                if arrays.free_cuts:
                    _cheapest_start_free(arrays, work, weight[t], target_s, share, r, i, t, costs)
                elif i == 0:
                    _cheapest_start(arrays, work, weight, target_s, share, r, i, t, 0)
                else:
                    for c in arrays.classes_of[t]:
                        if c >= 0:
                            _cheapest_start(arrays, work, weight, target_s, share, r, i, t, c)
            if i > 0:
                if arrays.free_cuts:
                    _cheapest_end_free(work, r, i - 1)
                else:
                    _cheapest_end_by_class(arrays, work, r, i - 1)
    best = math.inf
    for t in range(num_types):
        best = min(best, work.start[num_rounds - 1, t, 0, 0])
    return best


@nb.njit(cache=True)
def _cheapest_start_free(arrays, work, weight, target_s, share, r, i, t, costs):  # type: ignore[no-untyped-def]
    """Fill start[r, t, 0, i] where cuts are free, in blocks without a branch, which compile to vector instructions.

    Nearly whole units are rounded down here instead of checked: off by one only where the throughput asked for is
    within a part in ten billion of a breakpoint, and then too cheap, never too dear.
    """
    num_layers = arrays.crossing_bytes.size
    compute_serial, compute_shared = arrays.compute_serial_s[t], arrays.compute_shared_s[t]
    comm_serial, comm_shared = arrays.comm_serial_s[t], arrays.comm_shared_s[t]
    rest = work.end[r, t, 0]
    best, best_last = math.inf, -1
    first, stop = i, arrays.end_of_run[t, i]
    if work.rounds > 0 and r == 0:  # the last stage allowed has to reach the last layer
        first = num_layers - 1 if stop == num_layers else stop
    limit_s, has_room = target_s * (1 + SLACK), arrays.memory_bytes[t]
    while first < stop:
        block_end = min(first + BLOCK, stop)
        for j in range(first, block_end):
            serial = compute_serial[j + 1] - compute_serial[i]
            spare = max(target_s - serial, TINY)
            real = (compute_shared[j + 1] - compute_shared[i]) / spare
            comm = comm_serial[j + 1] - comm_serial[i]
            spare = max(target_s - comm, TINY)
            comm_units = (comm_shared[j + 1] - comm_shared[i]) / spare
            real = real if real > comm_units else comm_units
            whole = max(np.ceil(real * (1 - ALMOST_WHOLE)), 1.0)
            units = whole * share
            units = real if share < 1.0 and real > units else units
            serial = serial if serial > comm else comm
            costs[j] = weight * units if serial <= limit_s and whole <= arrays.limit[t] else math.inf
        if share > 0.0 and has_room < math.inf:
            for j in range(first, block_end):
                units = units_for_memory(arrays, t, i, j)
                costs[j] = max(costs[j], weight * units * share) if units <= arrays.limit[t] else math.inf
        if costs[first] >= best:  # longer stages need no fewer units
            break
        for j in range(first, block_end):
            if costs[j] + rest[j] < best:
                best, best_last = costs[j] + rest[j], j
        first = block_end
    work.start[r, t, 0, i] = best
    work.start_last[r, t, 0, i] = best_last
    work.start_class[r, t, 0, i] = 0


@nb.njit(cache=True)
def _cheapest_start(arrays, work, weight, target_s, share, r, i, t, c):  # type: ignore[no-untyped-def]
    """Fill start[r, t, c, i]: the best end of a stage that starts at i. Longer stages never need fewer units."""
    num_layers = arrays.crossing_bytes.size
    best = math.inf
    for j in range(i, arrays.end_of_run[t, i]):
        units = _counted_units(stage_parts(arrays, t, i, j, c, 0), target_s, share, arrays.limit[t])
        if units == math.inf or weight[t] * units >= best:
            break
        if j == num_layers - 1:
            best = weight[t] * units
            work.start_last[r, t, c, i] = j
            work.start_class[r, t, c, i] = 0
            break
        if work.rounds > 0 and r == 0:
            continue  # the last stage allowed has to reach the last layer
        for d in arrays.classes_of[t]:
            if d < 0:
                continue
            rest = work.end[r, t, d, j] + egress_usd(arrays, j, d) * 3600 / target_s
            if weight[t] * units + rest >= best:
                continue
            units_with_cut = units
            if d > 0:
                parts = stage_parts(arrays, t, i, j, c, d)
                units_with_cut = _counted_units(parts, target_s, share, arrays.limit[t])
            cost = weight[t] * units_with_cut + rest
            if units_with_cut < math.inf and cost < best:
                best = cost
                work.start_last[r, t, c, i] = j
                work.start_class[r, t, c, i] = d
    work.start[r, t, c, i] = best


@nb.njit(cache=True, inline="always")
def _counted_units(parts, target_s, share, limit):  # type: ignore[no-untyped-def]
    """Return max(share * whole units, real units) of a stage, or infinity where it needs more than there are."""
    whole = whole_units(parts, target_s)
    if whole > limit:
        return math.inf
    return whole if share == 1.0 else max(whole * share, real_units(parts, target_s))


@nb.njit(cache=True)
def _cheapest_end_free(work, r, j):  # type: ignore[no-untyped-def]
    """Fill end[., ., 0, j] where any two unlike types may be neighbours: the best type, or the second best."""
    first, second = -1, -1
    num_types = work.start.shape[1]
    for t in range(num_types):
        cost = work.start[r, t, 0, j + 1]
        if first < 0 or cost < work.start[r, first, 0, j + 1]:
            first, second = t, first
        elif second < 0 or cost < work.start[r, second, 0, j + 1]:
            second = t
    into = r + 1 if work.rounds > 0 else 0
    if into >= work.end.shape[0]:
        return
    for t in range(num_types):
        follower = second if t == first else first
        work.end_type[into, t, 0, j] = follower
        work.end[into, t, 0, j] = work.start[r, follower, 0, j + 1] if follower >= 0 else math.inf


@nb.njit(cache=True)
def _cheapest_end_by_class(arrays, work, r, j):  # type: ignore[no-untyped-def]
    """Fill end[., ., ., j] where the cut between two types decides what it costs and whether it may be."""
    into = r + 1 if work.rounds > 0 else 0
    if into >= work.end.shape[0]:
        return
    num_types = work.start.shape[1]
    for t in range(num_types):
        for d in range(work.start.shape[2]):
            work.end[into, t, d, j] = math.inf
            work.end_type[into, t, d, j] = -1
        for u in range(num_types):
            d = arrays.cut_class[t, u]
            if d >= 0 and work.start[r, u, d, j + 1] < work.end[into, t, d, j]:
                work.end[into, t, d, j] = work.start[r, u, d, j + 1]
                work.end_type[into, t, d, j] = u


@nb.njit(cache=True)
def follow(arrays, work, target_s, types, lasts, units):  # type: ignore[no-untyped-def]
    """Write the stages of the cheapest route into the three arrays and return how many there are."""
    num_layers, num_types = arrays.crossing_bytes.size, work.start.shape[1]
    r = max(work.rounds, 1) - 1
    t = 0
    for other in range(1, num_types):
        if work.start[r, other, 0, 0] < work.start[r, t, 0, 0]:
            t = other
    i, c, count = 0, 0, 0
    while i < num_layers:
        j, d = work.start_last[r, t, c, i], work.start_class[r, t, c, i]
        types[count], lasts[count] = t, j
        units[count] = int(whole_units(stage_parts(arrays, t, i, j, c, d), target_s))
        count += 1
        if j < num_layers - 1:
            t = work.end_type[r, t, d, j]
            r = r - 1 if work.rounds > 0 else 0
        i, c = j + 1, d
    return count


class Route(NamedTuple):
    """Stages as the kernels see them: type, last layer and units of each."""

    types: Ints
    lasts: Ints
    units: Ints

    def used(self, num_types: int) -> Ints:
        """Return the units used of each type."""
        return np.bincount(self.types, weights=self.units, minlength=num_types).astype(np.int64)

    def key(self) -> bytes:
        """Return what tells one choice of stages from another, whatever their units."""
        return self.types.tobytes() + self.lasts.tobytes()
