"""Labels: the cheapest route within limits, by routes that are extended stage by stage.

Each has its price and the units it has used of scarce types. A route is dropped where its price plus the surcharged
price of the rest, which the dynamic programme knows for every place, cannot beat the best known plan, or where another
route to the same place costs no more and has used no more of any scarce type. What is left at the end is the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.borrowed import borrowed
from dovetail.planner.cheapest_route import candidates, stage_sums
from dovetail.planner.stage_kernel import whole_units

SOLVED, OUT_OF_WORK = 0, 1
"""How a label search ended: with proof, or because it had used up the effort or the labels it was given."""

MAX_LABELS = 200_000
LABEL = np.dtype(
    [
        ("price", np.float64),
        ("paid", np.float64),  # in surcharges, less what those of all units there are add up to
        ("bound", np.float64),  # the least that a whole plan through this label can cost
        ("depth", np.int32),  # stages so far
        ("parent", np.int32),
        ("type", np.int32),
        ("last", np.int32),
        ("units", np.int32),
        ("next", np.int32),  # the next label in the same list
    ]
)


class Labels(NamedTuple):
    """Room for all routes so far, the units each has used of scarce types, and lists of them by where they end."""

    records: npt.NDArray[np.void]  # [MAX_LABELS] of LABEL
    used: npt.NDArray[np.int32]  # [MAX_LABELS, scarce types]
    heads: npt.NDArray[np.int32]  # [L, T, N] the first label of each list, or -1


def room_for_labels(arrays: ProblemArrays, num_scarce: int) -> Labels:
    """Return room for searches with so many scarce types."""
    return Labels(
        records=np.empty(MAX_LABELS, dtype=LABEL),
        used=np.empty((MAX_LABELS, num_scarce), dtype=np.int32),
        heads=np.empty((arrays.num_layers, arrays.num_types, arrays.classes_of.shape[1]), dtype=np.int32),
    )


@nb.njit(cache=True)
def label_search(  # type: ignore[no-untyped-def]  # noqa: C901
    arrays, work, labels, price, limit, target_s, cutoff, surcharge, scarce, max_effort, types, lasts, units
):
    """Return (how it ended, price, stages) of the cheapest plan within limits that costs less than `cutoff`.

    The price is infinity where there is none. `work` must hold the dynamic programme of price + surcharge, which prices
    the rest of every route from below. `scarce` are the types of which a plan below the cutoff could use too many.
    """
    num_layers, num_types, num_slots = arrays.crossing_bytes.size, price.size, arrays.classes_of.shape[1]
    records, used, heads = borrowed(labels.records), borrowed(labels.used), borrowed(labels.heads)
    through, facts, start, end = (
        borrowed(arrays.through_s),
        borrowed(work.facts),
        borrowed(work.start),
        borrowed(work.end),
    )
    best_end, block_end, ends, room = (
        borrowed(work.best_end),
        borrowed(work.block_end),
        borrowed(work.ends),
        borrowed(work.room),
    )
    crossing, cuts = borrowed(arrays.crossing_bytes), borrowed(arrays.class_cut)
    classes_of, slot_of = borrowed(arrays.classes_of), borrowed(arrays.slot_of)
    fixed_bytes, shared_bytes = borrowed(arrays.memory_fixed_bytes), borrowed(arrays.memory_shared_bytes)
    end_of_run, usd_per_byte = borrowed(arrays.end_of_run), borrowed(arrays.class_usd_per_byte)
    scarce_number = np.full(num_types, -1)
    for n in range(scarce.size):
        scarce_number[scarce[n]] = n
    heads[:] = -1
    root = records[0]
    root.price, root.paid, root.bound = 0.0, -np.sum(surcharge * limit), -math.inf
    root.depth, root.last, root.next = 0, -1, -1
    used[0] = 0
    num_labels, effort, best, best_label = 1, 0, cutoff, -1
    for ended_at in range(-1, num_layers - 1):
        inside = ended_at >= 0
        for t in range(num_types if inside else 1):
            for slot in range(num_slots if inside else 1):
                label = heads[ended_at, t, slot] if inside else 0
                while label >= 0:
                    route = records[label]
                    r = work.rounds - route.depth - 1 if work.rounds > 0 else 0
                    for u in range(num_types):
                        if route.bound >= best:
                            break
                        left = slot_of[u, t] if inside else 0
                        if inside and slot_of[t, u] != slot:
                            continue
                        if start[r, ended_at + 1, u, left] >= best - route.price - route.paid:
                            continue
                        room_of_type = limit[u]
                        if scarce_number[u] >= 0:
                            room_of_type -= used[label, scarce_number[u]]
                        num_labels, best, best_label, tried = _extend(
                            through,
                            fixed_bytes,
                            shared_bytes,
                            facts,
                            classes_of,
                            cuts,
                            crossing,
                            usd_per_byte,
                            end,
                            best_end,
                            block_end,
                            ends,
                            room,
                            records,
                            used,
                            heads,
                            scarce_number[u],
                            room_of_type,
                            price[u],
                            surcharge[u],
                            target_s,
                            end_of_run[u, ended_at + 1],
                            work.rounds > 0,
                            r,
                            label,
                            u,
                            left,
                            num_labels,
                            best,
                            best_label,
                        )
                        effort += tried
                        if num_labels >= records.size or effort > max_effort:
                            return OUT_OF_WORK, math.inf, 0
                    label = records[label].next
    if best_label < 0:
        return SOLVED, math.inf, 0
    label, count = best_label, records[best_label].depth
    for s in range(count - 1, -1, -1):
        record = records[label]
        types[s], lasts[s], units[s], label = record.type, record.last, record.units, record.parent
    return SOLVED, best, count


@nb.njit(cache=True, forceinline=True)
def _extend(  # type: ignore[no-untyped-def]  # noqa: C901
    through,
    fixed_bytes,
    shared_bytes,
    facts,
    classes_of,
    cuts,
    crossing,
    usd_per_byte,
    end,
    best_end,
    block_end,
    ends,
    room,
    records,
    used,
    heads,
    scarce_number,
    room_of_type,
    price,
    surcharge,
    target_s,
    stop,
    count_stages,
    r,
    parent,
    u,
    left,
    num_labels,
    best,
    best_label,
):
    """Extend one label by every stage on type `u`; return the new count, the best, its label, and the effort."""
    num_layers, num_slots = crossing.size, classes_of.shape[1]
    route = records[parent]
    first, weight, paid = route.last + 1, price + surcharge, route.price + route.paid
    left_shared, left_serial = 0.0, 0.0
    if first > 0:
        cut_class, cut_bytes = classes_of[u, left], crossing[first - 1]
        left_shared, left_serial = cut_bytes * cuts[cut_class, 0], cut_bytes * cuts[cut_class, 1] + cuts[cut_class, 2]
    if count_stages and r == 0:  # the last stage allowed has to reach the last layer
        count = 1 if stop == num_layers else 0
        ends[0] = num_layers - 1
    else:
        count = candidates(
            through,
            facts,
            best_end,
            block_end,
            ends,
            room,
            best - paid,
            weight,
            target_s,
            1.0,
            stop,
            r,
            first,
            u,
            left_shared,
            left_serial,
        )
    tried = count
    for n in range(count):
        last = ends[n]
        final = last == num_layers - 1
        parts = stage_sums(through, fixed_bytes, shared_bytes, facts, u, first, last)
        for d in range(1 if final else num_slots):
            serial, shared, rest, egress = parts[2] + left_serial, parts[3] + left_shared, 0.0, 0.0
            if not final:
                right, cut_bytes = classes_of[u, d], crossing[last]
                if right < 0:
                    break
                rest, egress = end[r, last, u, d], cut_bytes * usd_per_byte[right] * 3600 / target_s
                serial += cut_bytes * cuts[right, 1] + cuts[right, 2]
                shared += cut_bytes * cuts[right, 0]
            if rest >= best - paid:
                continue
            needed = whole_units((parts[0], parts[1], serial, shared, parts[4]), target_s)
            new_price, bound = route.price + price * needed + egress, paid + weight * needed + rest
            if needed > room_of_type or max(bound, new_price) >= best:
                continue
            if num_labels == records.size:
                return num_labels, best, best_label, tried
            new = records[num_labels]
            new.price, new.bound, new.paid = new_price, bound, route.paid + surcharge * needed
            new.depth, new.parent, new.type, new.last, new.units = route.depth + 1, parent, u, last, int(needed)
            for m in range(used.shape[1]):
                used[num_labels, m] = used[parent, m]
            if scarce_number >= 0:
                used[num_labels, scarce_number] += int(needed)
            if final:
                best, best_label = new_price, num_labels
                num_labels += 1
            else:
                kept, compared = _settle(records, used, heads, last, u, d, num_labels, count_stages)
                tried += compared
                num_labels += kept
    return num_labels, best, best_label, tried


@nb.njit(cache=True)
def _settle(records, used, heads, last, u, d, new, count_stages):  # type: ignore[no-untyped-def]
    """Put label `new` into the list at heads[last, u, d] unless one there is as good; take out those it beats.

    Returns (1 if it was kept else 0, how many labels were compared).
    """
    compared = 0
    before, other = -1, heads[last, u, d]
    while other >= 0:
        compared += 1
        following = records[other].next
        no_worse, no_better = records[other].price <= records[new].price, records[new].price <= records[other].price
        if count_stages:
            no_worse = no_worse and records[other].depth <= records[new].depth
            no_better = no_better and records[new].depth <= records[other].depth
        for m in range(used.shape[1]):
            no_worse = no_worse and used[other, m] <= used[new, m]
            no_better = no_better and used[new, m] <= used[other, m]
            if not (no_worse or no_better):
                break
        if no_worse:
            return 0, compared
        if no_better:
            if before >= 0:
                records[before].next = following
            else:
                heads[last, u, d] = following
        else:
            before = other
        other = following
    records[new].next = heads[last, u, d]
    heads[last, u, d] = new
    return 1, compared
