"""The cheapest stages at a given throughput when types are limited: a bound by prices, then labels for the proof.

Limits couple the stages, so the plain dynamic programme no longer applies. Two steps mend that.

1. Lagrange: put a surcharge m_t >= 0 on every unit of a type. For any surcharges

       cheapest(price + m) - sum_t m_t limit_t   <=   the optimum within limits,

   and subgradient steps raise the left side. Often that is proof enough.
2. Labels: extend routes layer by layer, each with its price and the units it has used. A route is dropped where its
   price plus the surcharged price of the rest cannot beat the best known plan, or where another route to the same
   place costs no more and has used no more of any type. What is left at the end is the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from dovetail.planner.arrays import Floats, Ints
from dovetail.planner.cheapest_route import cheapest, follow
from dovetail.planner.provision import egress_rate
from dovetail.planner.stage_kernel import egress_usd, stage_parts, whole_units

SOLVED, OUT_OF_WORK = 0, 1
"""How a label search ended: with proof, or because it had used up the effort or the labels it was given."""

MAX_LABELS = 200_000
LABEL = np.dtype(
    [
        ("price", np.float64),
        ("bound", np.float64),  # the least that a whole plan through this label can cost
        ("depth", np.int64),  # stages so far
        ("parent", np.int64),
        ("type", np.int64),
        ("last", np.int64),
        ("units", np.int64),
        ("next", np.int64),  # the next label in the same list
    ]
)


@nb.njit(cache=True)
def price_bound(arrays, work, price, limit, target_s, cutoff, surcharge, iterations, types, lasts, units):  # type: ignore[no-untyped-def]
    """Raise the Lagrangian bound; return (bound, price of the cheapest legal plan met, its number of stages).

    `surcharge` holds the start values and receives the best ones; the legal plan goes into the three arrays. Ends early
    once the bound reaches `cutoff`.
    """
    best_bound, best_price, best_count = -math.inf, math.inf, 0
    current = surcharge.copy()
    path_types, path_lasts, path_units = types.copy(), lasts.copy(), units.copy()
    pace, since_better = 1.0, 0
    used = np.zeros(price.size)
    for _ in range(iterations):
        value = cheapest(arrays, work, price + current, target_s, 1.0)
        if value == math.inf:
            return math.inf, best_price, best_count
        bound = value - np.sum(current * limit)
        since_better += 1
        if bound > best_bound:
            best_bound, since_better = bound, 0
            surcharge[:] = current
        count = follow(arrays, work, target_s, path_types, path_lasts, path_units)
        used[:] = 0.0
        path_price = egress_rate(arrays, path_types, path_lasts, count) * arrays.batch / target_s
        for s in range(count):
            used[path_types[s]] += path_units[s]
            path_price += price[path_types[s]] * path_units[s]
        if path_price < best_price and (used <= limit).all():
            best_price, best_count = path_price, count
            types[:], lasts[:], units[:] = path_types, path_lasts, path_units
        excess = np.where((used > limit) | (current > 0), used - limit, 0.0)
        norm = np.sum(excess * excess)
        if since_better == 4:
            pace, since_better = pace / 2, 0
        goal = min(cutoff, best_price)
        if best_bound >= goal or norm == 0.0 or pace < 1e-3:
            break
        current = np.maximum(0.0, current + pace * (goal - bound) / norm * excess)
    return best_bound, best_price, best_count


class Question(NamedTuple):
    """What a label search is asked; `refund` is what the surcharges of all units there are add up to."""

    price: Floats
    limit: Ints
    target_s: float
    surcharge: Floats
    refund: float
    scarce: Ints  # types of which a plan below the cutoff could use too many


class Labels(NamedTuple):
    """All routes so far, the units each has used, and lists of them by where they end."""

    records: npt.NDArray[np.void]  # [MAX_LABELS] of LABEL
    used: Ints  # [MAX_LABELS, T]
    heads: Ints  # [L, T, C] the first label of each list, or -1


@nb.njit(cache=True)
def label_search(arrays, work, price, limit, target_s, cutoff, surcharge, max_effort, types, lasts, units):  # type: ignore[no-untyped-def]
    """Return (how it ended, price, stages) of the cheapest plan within limits that costs less than `cutoff`.

    The price is infinity where there is none. `work` must hold the dynamic programme of price + surcharge, which prices
    the rest of every route from below.
    """
    num_layers, num_types, num_classes = arrays.crossing_bytes.size, price.size, arrays.class_latency_s.size
    scarce = np.flatnonzero(price * (limit + 1) < cutoff)
    question = Question(price, limit, target_s, surcharge, np.sum(surcharge * limit), scarce)
    labels = Labels(
        np.empty(MAX_LABELS, dtype=LABEL),
        np.empty((MAX_LABELS, num_types), dtype=np.int64),
        np.full((num_layers, num_types, num_classes), -1, dtype=np.int64),
    )
    root = labels.records[0]
    root.price, root.bound, root.depth, root.last, root.next = 0.0, -math.inf, 0, -1, -1
    labels.used[0] = 0
    num_labels, effort = 1, 0
    best, best_label = cutoff, -1
    for ended_at in range(-1, num_layers - 1):
        for t in range(num_types if ended_at >= 0 else 1):
            for c in range(num_classes if ended_at >= 0 else 1):
                label = labels.heads[ended_at, t, c] if ended_at >= 0 else 0
                while label >= 0:
                    for u in range(num_types):
                        if labels.records[label].bound >= best:
                            break
                        if ended_at >= 0 and arrays.cut_class[t, u] != c:
                            continue
                        num_labels, best, best_label, tried = _extend(
                            arrays, work, question, labels, num_labels, label, u, c, best, best_label
                        )
                        effort += tried
                        if effort > max_effort or num_labels + num_layers * num_classes >= MAX_LABELS:
                            return OUT_OF_WORK, math.inf, 0
                    label = labels.records[label].next
    if best_label < 0:
        return SOLVED, math.inf, 0
    label, count = best_label, labels.records[best_label].depth
    for s in range(count - 1, -1, -1):
        record = labels.records[label]
        types[s], lasts[s], units[s], label = record.type, record.last, record.units, record.parent
    return SOLVED, best, count


@nb.njit(cache=True)
def _extend(arrays, work, question, labels, num_labels, parent, u, left_class, best, best_label):  # type: ignore[no-untyped-def]
    """Extend one label by every stage on type `u`; return the new count, the best, its label, and the effort."""
    num_layers, num_classes = arrays.crossing_bytes.size, arrays.class_latency_s.size
    price, surcharge, target_s = question.price[u], question.surcharge, question.target_s
    route = labels.records[parent]
    first, depth = route.last + 1, route.depth + 1
    room = question.limit[u] - labels.used[parent, u]
    paid = np.sum(surcharge * labels.used[parent]) - question.refund
    tried = 0
    for last in range(first, arrays.end_of_run[u, first]):
        final = last == num_layers - 1
        least = whole_units(stage_parts(arrays, u, first, last, left_class, 0), target_s)
        tried += 1
        if least > room or route.price + price * least >= best:
            break  # a longer stage needs no fewer
        if not final and work.rounds > 0 and depth >= work.rounds:
            continue
        for d in range(1 if final else num_classes):
            rest = 0.0 if final else work.end[work.rounds - depth if work.rounds > 0 else 0, u, d, last]
            if rest == math.inf:
                continue
            needed = least if d == 0 else whole_units(stage_parts(arrays, u, first, last, left_class, d), target_s)
            new_price = route.price + price * needed
            if not final:
                new_price += egress_usd(arrays, last, d) * 3600 / target_s
            bound = new_price + paid + surcharge[u] * needed + rest
            if needed > room or max(bound, new_price) >= best:
                continue
            new = labels.records[num_labels]
            new.price, new.bound, new.depth, new.parent = new_price, bound, depth, parent
            new.type, new.last, new.units = u, last, int(needed)
            labels.used[num_labels] = labels.used[parent]
            labels.used[num_labels, u] += int(needed)
            if final:
                best, best_label = new_price, num_labels
                num_labels += 1
            else:
                kept, compared = _settle(labels, labels.heads[last, u], d, num_labels, question.scarce, work.rounds > 0)
                tried += compared
                num_labels += kept
    return num_labels, best, best_label, tried


@nb.njit(cache=True)
def _settle(labels, heads, d, new, scarce, count_stages):  # type: ignore[no-untyped-def]
    """Put label `new` into the list at heads[d] unless one there is as good; take out those it beats.

    Returns (1 if it was kept else 0, how many labels were compared).
    """
    records, used = labels.records, labels.used
    compared = 0
    before, other = -1, heads[d]
    while other >= 0:
        compared += 1
        following = records[other].next
        no_worse, no_better = records[other].price <= records[new].price, records[new].price <= records[other].price
        if count_stages:
            no_worse = no_worse and records[other].depth <= records[new].depth
            no_better = no_better and records[new].depth <= records[other].depth
        for t in scarce:
            no_worse = no_worse and used[other, t] <= used[new, t]
            no_better = no_better and used[new, t] <= used[other, t]
        if no_worse:
            return 0, compared
        if no_better:
            if before >= 0:
                records[before].next = following
            else:
                heads[d] = following
        else:
            before = other
        other = following
    records[new].next = heads[d]
    heads[d] = new
    return 1, compared
