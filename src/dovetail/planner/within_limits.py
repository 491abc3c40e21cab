"""The cheapest stages at a given throughput when types are limited: a bound by prices, then labels for the proof.

Limits couple the stages, so the plain dynamic programme no longer applies. Two steps mend that.

1. Lagrange: put a surcharge m_t >= 0 on every unit of a type. For any surcharges

       cheapest(price + m) - sum_t m_t limit_t   <=   the optimum within limits,

   and subgradient steps raise the left side. Often that is proof enough.
2. Labels: extend paths layer by layer, each with its price and the units it has used. A path is dropped where its
   price plus the surcharged price of the rest cannot beat the best known plan, or where another path to the same
   place costs no more and has used no more of any type. What is left at the end is the optimum.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np

from dovetail.planner.cheapest_path import cheapest, follow
from dovetail.planner.stage_kernel import stage_parts, whole_units

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
def price_bound(tables, work, price, limit, target_s, cutoff, surcharge, iterations, types, lasts, units):  # type: ignore[no-untyped-def]
    """Raise the Lagrangian bound; return (bound, price of the cheapest legal plan met, its number of stages).

    `surcharge` holds the start values and receives the best ones; the legal plan goes into the three arrays. Ends early
    once the bound reaches `cutoff`.
    """
    num_types, num_layers = price.size, tables.crossing_bytes.size
    best_bound, best_price, best_count = -math.inf, math.inf, 0
    current = surcharge.copy()
    path_types, path_lasts, path_units = types.copy(), lasts.copy(), units.copy()
    pace = 1.0
    since_better = 0
    used = np.zeros(num_types)
    for _ in range(iterations):
        value = cheapest(tables, work, price + current, target_s, True)
        if value == math.inf:
            return math.inf, best_price, best_count
        bound = value
        for t in range(num_types):
            bound -= current[t] * limit[t]
        count = follow(tables, work, target_s, path_types, path_lasts, path_units)
        used[:] = 0.0
        path_price = 0.0
        for s in range(count):
            used[path_types[s]] += path_units[s]
            path_price += price[path_types[s]] * path_units[s]
        if bound > best_bound:
            best_bound = bound
            surcharge[:] = current
            since_better = 0
        else:
            since_better += 1
            if since_better >= 4:
                pace *= 0.5
                since_better = 0
        norm = 0.0
        legal = True
        for t in range(num_types):
            excess = used[t] - limit[t]
            if excess > 0:
                legal = False
            if excess > 0 or current[t] > 0:
                norm += excess * excess
        if legal and path_price < best_price:
            best_price, best_count = path_price, count
            types[:num_layers] = path_types[:num_layers]
            lasts[:num_layers] = path_lasts[:num_layers]
            units[:num_layers] = path_units[:num_layers]
        goal = min(cutoff, best_price)
        if best_bound >= goal or norm == 0.0 or pace < 1e-3:
            break
        step = pace * (goal - bound) / norm
        for t in range(num_types):
            current[t] = max(0.0, current[t] + step * (used[t] - limit[t]))
    return best_bound, best_price, best_count


@nb.njit(cache=True)
def label_search(tables, work, price, limit, target_s, cutoff, surcharge, max_effort, types, lasts, units):  # type: ignore[no-untyped-def]
    """Return (how it ended, price, stages) of the cheapest plan within limits that costs less than `cutoff`.

    The price is infinity where there is none. `work` must hold the dynamic programme of price + surcharge, which prices
    the rest of every path from below.
    """
    num_layers, num_types, num_classes = tables.crossing_bytes.size, price.size, tables.class_latency_s.size
    scarce = np.flatnonzero(price * (limit + 1) < cutoff)  # types of which a plan below the cutoff could use too many
    refund = np.sum(surcharge * limit)
    labels = np.empty(MAX_LABELS, dtype=LABEL)
    used = np.empty((MAX_LABELS, num_types), dtype=np.int64)
    heads = np.full((num_layers, num_types, num_classes), -1, dtype=np.int64)  # labels by where they ended
    labels[0].price, labels[0].bound, labels[0].depth = 0.0, -math.inf, 0
    labels[0].type, labels[0].last, labels[0].next = -1, -1, -1
    used[0] = 0
    num_labels, effort = 1, 0
    best, best_label = cutoff, -1
    for ended_at in range(-1, num_layers - 1):
        for t in range(num_types if ended_at >= 0 else 1):
            for c in range(num_classes if ended_at >= 0 else 1):
                parent = heads[ended_at, t, c] if ended_at >= 0 else 0
                while parent >= 0:
                    for u in range(num_types):
                        if labels[parent].bound >= best:
                            break
                        if ended_at >= 0 and tables.cut_class[t, u] != c:
                            continue
                        num_labels, best, best_label, tried = _extend(
                            tables, work, price, limit, target_s, surcharge, refund, scarce,
                            labels, used, heads, num_labels, parent, u, c, best, best_label,
                        )  # fmt: skip
                        effort += tried
                        if effort > max_effort or num_labels + num_layers * num_classes >= MAX_LABELS:
                            return OUT_OF_WORK, math.inf, 0
                    parent = labels[parent].next
    if best_label < 0:
        return SOLVED, math.inf, 0
    label, count = best_label, labels[best_label].depth
    for s in range(count - 1, -1, -1):
        types[s], lasts[s], units[s] = labels[label].type, labels[label].last, labels[label].units
        label = labels[label].parent
    return SOLVED, best, count


@nb.njit(cache=True)
def _extend(
    tables, work, price, limit, target_s, surcharge, refund, scarce,
    labels, used, heads, num_labels, parent, u, left_class, best, best_label,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Extend one label by every stage on type `u`; return the new counts, the best so far and the effort."""
    num_layers, num_classes = tables.crossing_bytes.size, tables.class_latency_s.size
    first, depth, spent = labels[parent].last + 1, labels[parent].depth + 1, labels[parent].price
    room = limit[u] - used[parent, u]
    paid = np.sum(surcharge * used[parent]) - refund
    tried = 0
    for last in range(first, tables.end_of_run[u, first]):
        final = last == num_layers - 1
        least = whole_units(stage_parts(tables, u, first, last, left_class, 0), target_s)
        tried += 1
        if least > room or spent + price[u] * least >= best:
            break  # a longer stage needs no fewer
        if not final and work.rounds > 0 and depth >= work.rounds:
            continue
        for d in range(1 if final else num_classes):
            rest = 0.0 if final else work.end[work.rounds - depth if work.rounds > 0 else 0, last, u, d]
            if rest == math.inf:
                continue
            needed = least if d == 0 else whole_units(stage_parts(tables, u, first, last, left_class, d), target_s)
            if needed > room:
                continue
            new_price = spent + price[u] * needed
            bound = new_price + paid + surcharge[u] * needed + rest
            if max(bound, new_price) >= best:
                continue
            new = labels[num_labels]
            new.price, new.bound, new.depth, new.parent = new_price, bound, depth, parent
            new.type, new.last, new.units = u, last, int(needed)
            used[num_labels] = used[parent]
            used[num_labels, u] += int(needed)
            if final:
                best, best_label = new_price, num_labels
                num_labels += 1
            else:
                kept, compared = _settle(labels, used, heads[last, u], d, num_labels, scarce, work.rounds > 0)
                tried += compared
                num_labels += kept
    return num_labels, best, best_label, tried


@nb.njit(cache=True)
def _settle(labels, used, heads, d, new, scarce, count_stages):  # type: ignore[no-untyped-def]
    """Put label `new` into the list at heads[d] unless one there is as good; take out those it beats.

    Returns (1 if it was kept else 0, how many labels were compared).
    """
    compared = 0
    before, other = -1, heads[d]
    while other >= 0:
        compared += 1
        following = labels[other].next
        no_worse, no_better = labels[other].price <= labels[new].price, labels[new].price <= labels[other].price
        if count_stages:
            no_worse = no_worse and labels[other].depth <= labels[new].depth
            no_better = no_better and labels[new].depth <= labels[other].depth
        for t in scarce:
            no_worse = no_worse and used[other, t] <= used[new, t]
            no_better = no_better and used[new, t] <= used[other, t]
        if no_worse:
            return 0, compared
        if no_better:
            if before >= 0:
                labels[before].next = following
            else:
                heads[d] = following
        else:
            before = other
        other = following
    labels[new].next = heads[d]
    heads[d] = new
    return 1, compared
