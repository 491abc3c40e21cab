"""The cheapest plan per hour at a given throughput, within limits of types: asked by everything that plans.

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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.cheapest_route import Route, cheapest, follow, workspace
from dovetail.planner.provision import egress_rate, pace, provision
from dovetail.planner.stage_kernel import STEP, egress_usd, stage_parts, whole_units

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

PRICE_ITERATIONS = 60
LABEL_EFFORT = 3_000_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyCost:
    """No plan at this throughput costs less than `lower_bound` an hour; `route` is a legal one that was met, if any.

    `exact` says that the two agree, or that the bound has reached the cutoff. What all plans pay for bytes is left out.
    """

    lower_bound: float
    route: Route | None
    exact: bool


class Hourly:
    """Answers for one problem; holds the arrays that the kernels fill, and the last surcharges as a warm start.

    Bytes between sites are paid by the byte, so an hour at throughput x costs `price of the units + x * egress of the
    route`. Both parts never fall as x rises, which is all that the searches stand on. What every plan pays for bytes,
    the `least_egress_rate`, decides nothing and would only blunt their bounds: answers leave it out.
    """

    def __init__(self, arrays: ProblemArrays, *, max_stages: int | None = None) -> None:
        """Set up for one problem; prices and limits can be replaced per question."""
        self.arrays = arrays
        self.work = workspace(arrays, max_stages)
        self.effort = LABEL_EFFORT
        self._surcharge = np.zeros(arrays.num_types)
        self.least_egress_rate = self._least_egress_rate()
        room = arrays.num_layers
        self._buffers = (np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64))

    def at(self, samples_per_s: float, *, cutoff: float = math.inf, egress_at: float | None = None) -> HourlyCost:
        """Return the cheapest plan that reaches `samples_per_s`; above `cutoff` a bound is all that is asked for.

        With `egress_at`, units are those for `samples_per_s` and egress that of another throughput.
        """
        arrays, paying = self.arrays, samples_per_s
        if egress_at is not None:
            paying = egress_at
            arrays = arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * (egress_at / samples_per_s))
        target_s = arrays.batch / samples_per_s if samples_per_s > 0 else math.inf
        paid_by_all = self.least_egress_rate * paying
        value = cheapest(arrays, self.work, arrays.price_per_hour, target_s, 1.0)
        if value == math.inf:
            return HourlyCost(lower_bound=math.inf, route=None, exact=True)
        route = self._route(follow(arrays, self.work, target_s, *self._buffers))
        if (route.used(arrays.num_types) <= arrays.limit).all():
            return HourlyCost(lower_bound=value - paid_by_all, route=route, exact=True)
        if value >= cutoff + paid_by_all:
            return HourlyCost(lower_bound=value - paid_by_all, route=None, exact=True)
        answer = self._within_limits(arrays, target_s, value, cutoff + paid_by_all)
        return replace(answer, lower_bound=answer.lower_bound - paid_by_all)

    def relaxed(self, samples_per_s: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s at this throughput or at any higher one."""
        return self.bound_between(samples_per_s, math.inf)

    def bound_between(self, low: float, high: float) -> float:
        """Return a bound on what any plan costs per hour and sample/s that runs at `low` up to `high` samples/s.

        There a stage has at least the whole units that it needs at `low`, and at least the real units that it needs at
        its own pace x, whose number over x never falls. So for each stage

            units / x  >=  max(whole(low) / high, real(low) / low)

        and the sum over stages of the larger one is stronger than either sum. Egress over x is the same at any x.
        """
        arrays = self.arrays
        share = low / high if math.isfinite(high) else 0.0
        hourly = cheapest(arrays, self.work, arrays.price_per_hour, arrays.batch / low, share)
        return float(hourly / low) - self.least_egress_rate

    def provisioned(self, route: Route, min_samples_per_s: float) -> tuple[float, Route | None]:
        """Return the least USD per hour over samples/s of the route's stages, and the route with those units."""
        units = np.zeros_like(route.units)
        rate = provision(self.arrays, route.types, route.lasts, len(route.types), min_samples_per_s, STEP, units)
        return float(rate) - self.least_egress_rate, None if math.isinf(rate) else route._replace(units=units)

    def price(self, route: Route) -> float:
        """Return what the units of a route cost per hour."""
        return float(self.arrays.price_per_hour[route.types] @ route.units)

    def rate(self, route: Route) -> float:
        """Return the USD per hour over samples/s of a route."""
        egress = float(egress_rate(self.arrays, route.types, route.lasts, len(route.types)))
        return self.price(route) / self.pace(route) + egress - self.least_egress_rate

    def pace(self, route: Route) -> float:
        """Return the samples/s of a route."""
        return float(pace(self.arrays, route.types, route.lasts, route.units))

    def slowest_pace(self) -> float:
        """Return samples/s that any plan reaches: every layer on its slowest type, and every cut paid."""
        arrays = self.arrays
        layers = [arrays.compute_serial_s, arrays.compute_shared_s, arrays.comm_serial_s, arrays.comm_shared_s]
        layer_s = sum(float(np.diff(sums, axis=1).max(axis=0).sum()) for sums in layers)
        s_per_byte = (arrays.class_s_per_byte + arrays.class_site_s_per_byte).max()
        cuts_s = float((arrays.crossing_bytes * s_per_byte + arrays.class_latency_s.max()).sum())
        return arrays.batch / (layer_s + 2 * cuts_s)

    def _least_egress_rate(self) -> float:
        """Return what every plan pays at least for bytes between sites, per sample, in USD per hour over samples/s."""
        arrays = self.arrays
        if not arrays.has_egress:
            return 0.0
        pace = self.slowest_pace()
        hourly = cheapest(arrays, self.work, np.zeros(arrays.num_types), arrays.batch / pace, 1.0)
        return float(hourly) / pace if math.isfinite(hourly) else 0.0

    def _within_limits(self, arrays: ProblemArrays, target_s: float, value: float, cutoff: float) -> HourlyCost:
        """Return the answer where the cheapest route uses more units than there are."""
        dearest_cuts = float(arrays.crossing_bytes.sum() * arrays.class_usd_per_byte.max()) * 3600 / target_s
        impossible = (float(arrays.price_per_hour @ arrays.limit) + dearest_cuts) * (1 + 1e-9)  # more than there is
        cutoff = min(cutoff, impossible)
        limit = arrays.limit.astype(np.float64)
        arguments = (arrays, self.work, arrays.price_per_hour, limit, target_s)
        bound, price, count = price_bound(*arguments, cutoff, self._surcharge, PRICE_ITERATIONS, *self._buffers)
        route = self._route(count) if count else None
        bound = max(bound, value)
        if bound >= min(cutoff, price * (1 - 1e-12)):
            return HourlyCost(
                lower_bound=math.inf if bound >= impossible else min(bound, price), route=route, exact=True
            )
        cheapest(arrays, self.work, arrays.price_per_hour + self._surcharge, target_s, 1.0)
        goal = min(cutoff, price)
        ended, found, count = label_search(
            arrays,
            self.work,
            arrays.price_per_hour,
            arrays.limit,
            target_s,
            goal,
            self._surcharge,
            self.effort,
            *self._buffers,
        )
        if ended == OUT_OF_WORK:
            return HourlyCost(lower_bound=bound, route=route, exact=False)
        if count:
            route = self._route(count)
        lower_bound = min(found, goal)
        return HourlyCost(lower_bound=math.inf if lower_bound >= impossible else lower_bound, route=route, exact=True)

    def _route(self, count: int) -> Route:
        """Return a copy of the first `count` stages in the buffers."""
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        return Route(types=types, lasts=lasts, units=units)
