"""Dynamic programming: the cheapest stages that reach a given throughput, limits aside.

For a fixed throughput every stage needs its own least units, and the hourly price is a sum over stages, so from the
last layer to the first

    start(i, t, c) = min over j, d of  price_t units(i..j on t, cuts c and d) + end(j, t, d)
    end(j, t, d)   = min over u != t whose cut with t is of class d of  start(j + 1, u, d)

where `c` and `d` are the classes of the cuts at the stage's two ends. A cut between sites adds what its bytes cost in
an hour at that throughput. `start(0, t, free)` over t is the answer. With `rounds` > 0 the functions carry the number
of stages still allowed, and stages are counted.

Where every pair of types has a link of its own there are as many classes as pairs, but hardly any of them matters:
units are whole, so a slower link at one end mostly needs no more of them. So each end j is first priced with the least
that cuts of the type cost, without a division (`candidates`): blocks of ends that cannot beat the stage which was best
one layer later are passed over at once. Of the few that are left the cheapest is priced with the most that a cut on the
left costs. Where that is no dearer, it is the answer for every class on the left; elsewhere the few are tried class by
class.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from dovetail.planner.arrays import BLOCK, Floats, Ints, ProblemArrays, in_blocks
from dovetail.planner.borrowed import borrowed
from dovetail.planner.stage_kernel import SLACK, real_units, stage_parts, units_with_room, whole_units
from dovetail.spec import Place

TINY = 1e-300
MANY, ALMOST_WHOLE = 1000.0, 1e-10
"""Of so many units a number this much above a whole one may be what rounding made of it."""
ROUNDING = 1e-9
"""So much more than a whole number of units may be what rounding made of it: such ends are priced exactly."""


class Workspace(NamedTuple):
    """What the dynamic programme fills; `rounds` is 0 where stages are not counted. Slots are those of `classes_of`."""

    rounds: int
    start: Floats  # [R, L, T, N] cheapest from a stage that starts here
    start_last: npt.NDArray[np.int32]  # [R, L, T, N] where that stage ends
    start_slot: npt.NDArray[np.int16]  # [R, L, T, N] the slot of the cut behind it
    end: Floats  # [R, L, T, N] cheapest of what follows a stage that ends here, and what the cut pays for bytes
    best_end: Floats  # [R, T, L in blocks] the least of it over the slots
    best_slot: npt.NDArray[np.int16]  # [R, T, L] and where that is
    block_end: Floats  # [R, T, L / BLOCK] the least of that over a block of ends
    guess: Ints  # [R, T] where the cheapest stage ended that starts one layer later
    facts: Floats  # [T, 8] of types: memory, limit, the least and the most that cuts cost
    ends: Ints  # [L] the ends that one stage may have
    least: Floats  # [L] and what it costs with them at least
    room: Floats  # [BLOCK] how far the ends of a block are from costing too much


def workspace(arrays: ProblemArrays, max_stages: int | None) -> Workspace:
    """Return room for one problem; `max_stages` of at least the number of layers limits nothing."""
    rounds = 0 if max_stages is None or max_stages >= arrays.num_layers else max_stages
    num_types, num_layers = arrays.num_types, arrays.num_layers
    by_type = (max(rounds, 1), num_types)
    shape = (max(rounds, 1), num_layers, num_types, arrays.classes_of.shape[1])
    return Workspace(
        rounds=rounds,
        start=np.full(shape, math.inf),
        start_last=np.zeros(shape, dtype=np.int32),
        start_slot=np.zeros(shape, dtype=np.int16),
        end=np.full(shape, math.inf),
        best_end=np.full((*by_type, in_blocks(num_layers)), math.inf),
        best_slot=np.full((*by_type, num_layers), -1, dtype=np.int16),
        block_end=np.full((*by_type, in_blocks(num_layers) // BLOCK), math.inf),
        guess=np.zeros(by_type, dtype=np.int64),
        facts=np.empty((num_types, 8)),
        ends=np.empty(num_layers, dtype=np.int64),
        least=np.empty(num_layers),
        room=np.empty(BLOCK),
    )


@nb.njit(cache=True)
def cheapest(arrays, work, weight, target_s, share):  # type: ignore[no-untyped-def]
    """Fill `work` and return the least sum of weight x units, and of egress, over stages that each take `target_s`.

    A stage counts as max(share * whole units, real units): with share = 1 that is whole units, with share = 0 the
    relaxation to real ones, and in between a bound for a range of throughputs (see `Hourly.bound_between`).
    """
    num_layers, num_types, num_rounds = arrays.crossing_bytes.size, weight.size, max(work.rounds, 1)
    through, end_of_run, crossing = (
        borrowed(arrays.through_s),
        borrowed(arrays.end_of_run),
        borrowed(arrays.crossing_bytes),
    )
    fixed_bytes, shared_bytes = borrowed(arrays.memory_fixed_bytes), borrowed(arrays.memory_shared_bytes)
    classes_of, cuts, slot_of = borrowed(arrays.classes_of), borrowed(arrays.class_cut), borrowed(arrays.slot_of)
    neighbours, cut_class = borrowed(arrays.neighbours), borrowed(arrays.cut_class)
    usd_per_byte = borrowed(arrays.class_usd_per_byte)
    start, start_last, start_slot = borrowed(work.start), borrowed(work.start_last), borrowed(work.start_slot)
    end, best_end, best_slot = borrowed(work.end), borrowed(work.best_end), borrowed(work.best_slot)
    block_end, guess, facts = borrowed(work.block_end), borrowed(work.guess), borrowed(work.facts)
    ends, least, room = borrowed(work.ends), borrowed(work.least), borrowed(work.room)
    facts[:, 0], facts[:, 1] = arrays.memory_bytes, arrays.limit
    facts[:, 2:5], facts[:, 5:] = arrays.least_cut, arrays.most_cut
    block_end[:] = math.inf
    best_end[:, :, num_layers - 1] = 0.0  # nothing follows the last layer
    block_end[:, :, (num_layers - 1) // BLOCK] = 0.0
    guess[:] = num_layers - 1
    for i in range(num_layers - 1, -1, -1):
        for r in range(num_rounds):
            final = work.rounds > 0 and r == 0  # the last stage allowed has to reach the last layer
            for t in range(num_types):
                stop = end_of_run[t, i]
                if stop > i and not (final and stop < num_layers):
                    _starts(
                        through,
                        fixed_bytes,
                        shared_bytes,
                        facts,
                        classes_of,
                        cuts,
                        crossing,
                        start,
                        start_last,
                        start_slot,
                        end,
                        best_end,
                        best_slot,
                        block_end,
                        guess,
                        ends,
                        least,
                        room,
                        weight[t],
                        target_s,
                        share,
                        final,
                        stop,
                        r,
                        i,
                        t,
                    )
                else:
                    for slot in range(start.shape[3]):
                        start[r, i, t, slot] = math.inf
            into = r + 1 if work.rounds > 0 else 0
            if i > 0 and into < num_rounds:
                if arrays.free_cuts:
                    _ends_free(start, end, best_end, best_slot, block_end, r, into, i - 1)
                else:
                    _ends(
                        neighbours,
                        slot_of,
                        cut_class,
                        usd_per_byte,
                        end_of_run,
                        start,
                        end,
                        best_end,
                        best_slot,
                        block_end,
                        crossing[i - 1] * 3600 / target_s,
                        r,
                        into,
                        i - 1,
                    )
    best = math.inf
    for t in range(num_types):
        best = min(best, start[num_rounds - 1, 0, t, 0])
    return best


@nb.njit(cache=True, forceinline=True)
def _starts(  # type: ignore[no-untyped-def]
    through,
    fixed_bytes,
    shared_bytes,
    facts,
    classes_of,
    cuts,
    crossing,
    start,
    start_last,
    start_slot,
    end,
    best_end,
    best_slot,
    block_end,
    guesses,
    ends,
    least,
    room,
    weight,
    target_s,
    share,
    final,
    stop,
    r,
    i,
    t,
):
    """Fill start[r, i, t, .]: the best end of a stage that starts at i, for each class of cut on its left."""
    cut_bytes = crossing[i - 1] if i > 0 else 0.0
    low_shared, low_serial, high_shared, high_serial = 0.0, 0.0, 0.0, 0.0
    if i > 0:
        low_shared, low_serial = cut_bytes * facts[t, 2], cut_bytes * facts[t, 3] + facts[t, 4]
        high_shared, high_serial = cut_bytes * facts[t, 5], cut_bytes * facts[t, 6] + facts[t, 7]
    guess = stop - 1 if final else min(max(guesses[r, t], i), stop - 1)
    value, slot = _value(
        through,
        fixed_bytes,
        shared_bytes,
        facts,
        classes_of,
        cuts,
        crossing,
        end,
        best_slot,
        weight,
        target_s,
        share,
        r,
        i,
        t,
        guess,
        high_shared,
        high_serial,
    )
    lead, lead_least = (
        guess,
        _least(
            through,
            fixed_bytes,
            shared_bytes,
            facts,
            best_end,
            weight,
            target_s,
            share,
            r,
            i,
            t,
            guess,
            low_shared,
            low_serial,
        ),
    )
    count = 0
    if not final:
        count = candidates(
            through,
            facts,
            best_end,
            block_end,
            ends,
            room,
            value,
            weight,
            target_s,
            share,
            stop,
            r,
            i,
            t,
            low_shared,
            low_serial,
        )
    for k in range(count):
        least[k] = _least(
            through,
            fixed_bytes,
            shared_bytes,
            facts,
            best_end,
            weight,
            target_s,
            share,
            r,
            i,
            t,
            ends[k],
            low_shared,
            low_serial,
        )
        if least[k] < lead_least:
            lead, lead_least = ends[k], least[k]
    if lead != guess:
        value, slot = _value(
            through,
            fixed_bytes,
            shared_bytes,
            facts,
            classes_of,
            cuts,
            crossing,
            end,
            best_slot,
            weight,
            target_s,
            share,
            r,
            i,
            t,
            lead,
            high_shared,
            high_serial,
        )
    guesses[r, t] = lead
    if value <= lead_least:  # no class on the left makes a difference
        for c in range(classes_of.shape[1]):
            start[r, i, t, c] = value
            start_last[r, i, t, c] = lead
            start_slot[r, i, t, c] = slot
        return
    _starts_by_class(
        through,
        fixed_bytes,
        shared_bytes,
        facts,
        classes_of,
        cuts,
        crossing,
        start,
        start_last,
        start_slot,
        end,
        best_slot,
        ends,
        least,
        count,
        weight,
        target_s,
        share,
        r,
        i,
        t,
        lead,
        lead_least,
        cut_bytes,
    )


@nb.njit(cache=True, forceinline=True)
def _starts_by_class(  # type: ignore[no-untyped-def]
    through,
    fixed_bytes,
    shared_bytes,
    facts,
    classes_of,
    cuts,
    crossing,
    start,
    start_last,
    start_slot,
    end,
    best_slot,
    ends,
    least,
    count,
    weight,
    target_s,
    share,
    r,
    i,
    t,
    lead,
    lead_least,
    cut_bytes,
):
    """Fill start[r, i, t, .] class by class, from the `count` ends there may be; `lead` has the least bound of them."""
    for c in range(classes_of.shape[1]):
        d = classes_of[t, c]
        if d < 0:
            break
        left_shared, left_serial = 0.0, 0.0
        if i > 0:
            left_shared, left_serial = cut_bytes * cuts[d, 0], cut_bytes * cuts[d, 1] + cuts[d, 2]
        best, best_last = math.inf, lead
        for k in range(-1, count):
            j, at_least = (lead, lead_least) if k < 0 else (ends[k], least[k])
            if at_least < best and not (k >= 0 and j == lead):
                value, slot = _value(
                    through,
                    fixed_bytes,
                    shared_bytes,
                    facts,
                    classes_of,
                    cuts,
                    crossing,
                    end,
                    best_slot,
                    weight,
                    target_s,
                    share,
                    r,
                    i,
                    t,
                    j,
                    left_shared,
                    left_serial,
                )
                if value < best:
                    best, best_last = value, j
                    start_slot[r, i, t, c] = slot
        start[r, i, t, c] = best
        start_last[r, i, t, c] = best_last


@nb.njit(cache=True, forceinline=True)
def candidates(  # type: ignore[no-untyped-def]
    through,
    facts,
    best_end,
    block_end,
    ends,
    room,
    threshold,
    weight,
    target_s,
    share,
    stop,
    r,
    i,
    t,
    left_shared,
    left_serial,
):
    """Write all ends into `ends` where a stage from i may come to less than `threshold`; return how many.

    units(i..j) <= k = (threshold - rest) / weight means `shared <= k * (target_s - serial)`, for computation and for
    communication: products instead of quotients, and no branch.
    """
    whole, most, per_unit = share == 1.0, facts[t, 1], 1 / max(weight, TINY)
    compute_s = comm_s = target_s * (1 + 2 * SLACK)
    compute_before = comm_before = 0.0
    if i > 0:
        compute_s, comm_s = compute_s + through[t, 0, i - 1], comm_s + through[t, 2, i - 1]
        compute_before, comm_before = through[t, 1, i - 1], through[t, 3, i - 1]
    comm_s, comm_before = comm_s - left_serial, comm_before - left_shared
    first, count = i, 0
    while first < stop:
        block = first // BLOCK
        block_stop = min((block + 1) * BLOCK, stop)
        spare_s, comm_spare_s = compute_s - through[t, 0, first], comm_s - through[t, 2, first]
        if spare_s < 0 or comm_spare_s < 0:  # and longer stages have more that is serial
            break
        k = _units_below(threshold, block_end[r, t, block], per_unit, most, whole)
        if through[t, 1, first] - compute_before <= k * spare_s and (
            through[t, 3, first] - comm_before <= k * comm_spare_s
        ):
            base = np.uint64(block * BLOCK)  # unsigned: no index is counted from the end
            for n in range(BLOCK):  # always all of them: a loop of known length becomes a few vector instructions
                at = base + np.uint64(n)
                k = _units_below(threshold, best_end[r, t, at], per_unit, most, whole)
                compute_room = k * (compute_s - through[t, 0, at]) - through[t, 1, at] + compute_before
                comm_room = k * (comm_s - through[t, 4, at]) - through[t, 5, at] + comm_before
                room[n] = comm_room if comm_room < compute_room else compute_room
            for j in range(first, block_stop):
                if room[j - block * BLOCK] >= 0:
                    ends[count] = j
                    count += 1
        first = block_stop
    return count


@nb.njit(cache=True, inline="always")
def _units_below(threshold, rest, per_unit, most, whole):  # type: ignore[no-untyped-def]
    """Return how many units a stage can have at most so that it and the rest stay below the threshold."""
    k = (threshold - rest) * per_unit * (1 + ROUNDING) + ROUNDING
    k = most if most < k else k
    return np.floor(k) if whole else k


@nb.njit(cache=True, forceinline=True)
def _least(  # type: ignore[no-untyped-def]
    through, fixed_bytes, shared_bytes, facts, best_end, weight, target_s, share, r, i, t, j, left_shared, left_serial
):
    """Return what a stage i..j and all behind it cost at least, if cuts cost the least that they do for the type."""
    parts = stage_sums(through, fixed_bytes, shared_bytes, facts, t, i, j)
    reach = (through[t, 4, j] - through[t, 2, j], through[t, 5, j] - through[t, 3, j])
    units = _counted_units(
        (parts[0], parts[1], parts[2] + left_serial + reach[0], parts[3] + left_shared + reach[1], parts[4]),
        target_s,
        share,
        facts[t, 1],
    )
    return weight * units + best_end[r, t, j] if units < math.inf else math.inf


@nb.njit(cache=True, forceinline=True)
def stage_sums(through, fixed_bytes, shared_bytes, facts, t, i, j):  # type: ignore[no-untyped-def]
    """Return the parts of layers i..j on type t without its cuts, and its least units by memory (`stage_parts`)."""
    compute_serial, compute_shared = through[t, 0, j], through[t, 1, j]
    comm_serial, comm_shared = through[t, 2, j], through[t, 3, j]
    if i > 0:
        compute_serial, compute_shared = compute_serial - through[t, 0, i - 1], compute_shared - through[t, 1, i - 1]
        comm_serial, comm_shared = comm_serial - through[t, 2, i - 1], comm_shared - through[t, 3, i - 1]
    units = 1.0
    if facts[t, 0] < math.inf:
        held = fixed_bytes[t, j + 1] - fixed_bytes[t, i], shared_bytes[t, j + 1] - shared_bytes[t, i]
        units = units_with_room(facts[t, 0], held[0], held[1])
    return compute_serial, compute_shared, comm_serial, comm_shared, units


@nb.njit(cache=True, forceinline=True)
def _value(  # type: ignore[no-untyped-def]
    through,
    fixed_bytes,
    shared_bytes,
    facts,
    classes_of,
    cuts,
    crossing,
    end,
    best_slots,
    weight,
    target_s,
    share,
    r,
    i,
    t,
    j,
    left_shared,
    left_serial,
):
    """Return what a stage i..j and all behind it cost, with this cut on the left, and the slot of the one behind it."""
    limit = facts[t, 1]
    parts = stage_sums(through, fixed_bytes, shared_bytes, facts, t, i, j)
    compute_serial, compute_shared, memory = parts[0], parts[1], parts[4]
    comm_serial, comm_shared = parts[2] + left_serial, parts[3] + left_shared
    if j == crossing.size - 1:
        units = _counted_units(
            (compute_serial, compute_shared, comm_serial, comm_shared, memory), target_s, share, limit
        )
        return weight * units if units < math.inf else math.inf, 0
    best_slot = best_slots[r, t, j]
    best, cheap = math.inf, -math.inf
    if best_slot < 0:
        return best, 0
    slot = best_slot
    for n in range(-1, classes_of.shape[1]):
        if n >= 0:
            slot = n
        d = classes_of[t, slot]
        if d < 0:
            break
        if cheap + end[r, j, t, slot] >= best:
            continue
        serial, shared = comm_serial + crossing[j] * cuts[d, 1] + cuts[d, 2], comm_shared + crossing[j] * cuts[d, 0]
        units = _counted_units((compute_serial, compute_shared, serial, shared, memory), target_s, share, limit)
        if units < math.inf and weight * units + end[r, j, t, slot] < best:
            best, best_slot = weight * units + end[r, j, t, slot], slot
        if n < 0:  # the one with the cheapest rest: others matter only where it needs more units than the least cut
            serial = comm_serial + through[t, 4, j] - through[t, 2, j]
            shared = comm_shared + through[t, 5, j] - through[t, 3, j]
            least = _counted_units((compute_serial, compute_shared, serial, shared, memory), target_s, share, limit)
            if units <= least:
                break
            cheap = weight * least
    return best, best_slot


@nb.njit(cache=True, inline="always")
def _counted_units(parts, target_s, share, limit):  # type: ignore[no-untyped-def]
    """Return max(share * whole units, real units) of a stage, or infinity where it needs more than there are."""
    whole = whole_units(parts, target_s)
    if MANY < whole < math.inf:  # the spare time is a small difference: rather too cheap than too dear
        whole = max(np.ceil(real_units(parts, target_s) * (1 - ALMOST_WHOLE)), parts[4])
    if whole > limit:
        return math.inf
    return whole if share == 1.0 else max(whole * share, real_units(parts, target_s))


@nb.njit(cache=True, forceinline=True)
def _ends_free(start, end, best_end, best_slot, block_end, r, into, j):  # type: ignore[no-untyped-def]
    """Fill end[., j, ., 0] where any two unlike types may be neighbours: the best type, or the second best."""
    first, second = -1, -1
    num_types = start.shape[2]
    for t in range(num_types):
        cost = start[r, j + 1, t, 0]
        if first < 0 or cost < start[r, j + 1, first, 0]:
            first, second = t, first
        elif second < 0 or cost < start[r, j + 1, second, 0]:
            second = t
    for t in range(num_types):
        follower = second if t == first else first
        value = start[r, j + 1, follower, 0] if follower >= 0 else math.inf
        end[into, j, t, 0] = value
        best_end[into, t, j] = value
        best_slot[into, t, j] = 0 if value < math.inf else -1
        block_end[into, t, j // BLOCK] = min(block_end[into, t, j // BLOCK], value)


@nb.njit(cache=True, forceinline=True)
def _ends(  # type: ignore[no-untyped-def]
    neighbours,
    slot_of,
    cut_class,
    usd_per_byte,
    end_of_run,
    start,
    end,
    best_end,
    best_slot,
    block_end,
    bytes_per_hour,
    r,
    into,
    j,
):
    """Fill end[., j, ., .] where the cut between two types decides what it costs and whether it may be."""
    for t in range(start.shape[2]):
        for slot in range(start.shape[3]):
            end[into, j, t, slot] = math.inf
        best, slot_of_best = math.inf, -1
        if end_of_run[t, j] > j:
            for k in range(neighbours.shape[1]):
                u = neighbours[t, k]
                if u < 0:
                    break
                slot = slot_of[t, u]
                value = start[r, j + 1, u, slot_of[u, t]] + bytes_per_hour * usd_per_byte[cut_class[t, u]]
                if value < end[into, j, t, slot]:
                    end[into, j, t, slot] = value
                    if value < best:
                        best, slot_of_best = value, slot
        best_end[into, t, j] = best
        best_slot[into, t, j] = slot_of_best
        block_end[into, t, j // BLOCK] = min(block_end[into, t, j // BLOCK], best)


@nb.njit(cache=True)
def follow(arrays, work, target_s, types, lasts, units):  # type: ignore[no-untyped-def]
    """Write the stages of the cheapest route into the three arrays and return how many there are."""
    num_layers, num_types = arrays.crossing_bytes.size, work.start.shape[2]
    r = max(work.rounds, 1) - 1
    t = 0
    for other in range(1, num_types):
        if work.start[r, 0, other, 0] < work.start[r, 0, t, 0]:
            t = other
    i, slot, left, count = 0, 0, 0, 0
    while i < num_layers:
        j, right, after, r_after = work.start_last[r, i, t, slot], 0, t, r
        if j < num_layers - 1:
            behind = work.start_slot[r, i, t, slot]
            right = arrays.classes_of[t, behind]
            r_after = r - 1 if work.rounds > 0 else 0
            after = _follower(arrays, work, r_after, t, behind, j)
        types[count], lasts[count] = t, j
        units[count] = int(whole_units(stage_parts(arrays, t, i, j, left, right), target_s))
        count += 1
        slot, left = arrays.slot_of[after, t], right
        i, t, r = j + 1, after, r_after
    return count


@nb.njit(cache=True)
def _follower(arrays, work, r, t, slot, j):  # type: ignore[no-untyped-def]
    """Return the cheapest type to follow `t` behind layer j, of those whose cut with it is at a slot."""
    best = -1
    for u in arrays.neighbours[t]:
        if u < 0:
            break
        if arrays.slot_of[t, u] == slot:
            value = work.start[r, j + 1, u, arrays.slot_of[u, t]]
            if best < 0 or value < work.start[r, j + 1, best, arrays.slot_of[best, t]]:
                best = u
    return best


class Route(NamedTuple):
    """Stages as the kernels see them: type, last layer and units of each; and what runs beside them."""

    types: Ints
    lasts: Ints
    units: Ints
    place: Place | None = None
    servers: int = 0
    readers: int = 0
    row_budgets: dict[str, float] | None = None

    def used(self, num_types: int) -> Ints:
        """Return the units used of each type."""
        return np.bincount(self.types, weights=self.units, minlength=num_types).astype(np.int64)

    def key(self) -> bytes:
        """Return what tells one choice of stages from another, whatever their units."""
        return self.types.tobytes() + self.lasts.tobytes() + (self.place or "").encode()
