"""Labels for steps over servers: the cheapest stages whose step, filled and drained, takes no longer than a given time.

With N micro-batches a stage of k units in t spends p = k t / max(N, k) on one, and servers are a stage too:

    step = sum of p  +  max over stages of (t - p)

So a route has three figures beside its units: its price, the sum of p so far and the longest t - p so far. One that is
no better in any of them than another to the same place is dropped, and so is one whose price and that of the cheapest
rest (`cheapest`, in which every stage has all of the time) cannot beat the best known. What is left is the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.provision import stage_list
from dovetail.planner.stage_kernel import SLACK, egress_usd, seconds_on, stage_parts, whole_units

COUNT, EFFORT, BEST = 0, 1, 2
"""Where a search counts: labels, what it has tried, and the best label that reaches the end."""
MAX_LABELS = 1_000_000
LABEL = np.dtype(
    [
        ("price", np.float64),
        ("filled_s", np.float64),  # the sum of what one micro-batch spends at each stage
        ("paced_s", np.float64),  # the longest of what a stage takes beyond that
        ("pieces", np.float64),  # micro-batches of a batch: what the first stage's units make of it
        ("opened", np.int32),  # the row of `rest_s` for so many pieces
        ("depth", np.int32),
        ("parent", np.int32),
        ("type", np.int32),
        ("last", np.int32),
        ("units", np.int32),
        ("servers", np.int32),
        ("next", np.int32),
    ]
)


class StepLabels(NamedTuple):
    """Room for all routes so far, what each has used of what is bounded, and lists of them by where they end."""

    records: npt.NDArray[np.void]  # [MAX_LABELS] of LABEL
    used: npt.NDArray[np.int32]  # [MAX_LABELS, C]
    heads: npt.NDArray[np.int32]  # [L, T, N]


class StepCosts(NamedTuple):
    """What a step takes beside its stages."""

    batch: float
    micro_batch: float  # 0 where filling and draining is not priced
    server_s: float  # of one core for a batch
    has_servers: bool
    core_price: float


class Bounds(NamedTuple):
    """What may be used: for each row, weights of units, of servers, and the cap (see `Room`)."""

    weights: Ints  # [C, T]
    beside: Ints  # [C]
    caps: Ints  # [C]
    scarce: int  # the row of which the rest of a route takes no less than the workspace `least` says


class Rests(NamedTuple):
    """What the rest of a route takes at least, by where it goes on, and by how much of the time is left for it.

    A stage of the rest has at most the time of a step less what one micro-batch spends at the stages before it. The
    tables are for the parts `shares` of a step's time, rising to 1: the least that is no shorter holds.
    """

    shares: Floats  # [G]
    start: Floats  # [G, R, L, T, N] the price from a stage that starts here
    end: Floats  # [G, R, L, T, N] and of what follows one that ends here
    scarce: Floats  # [G, R, L, T, N] what follows takes of what is scarce
    filled_s: Floats  # [K, L + 1] what one micro-batch spends from a layer on, for so many pieces; row 0 for any


class Search(NamedTuple):
    """What is sought: stages whose step takes `target_s`, for less than `cutoff`, with so much effort."""

    target_s: float
    cutoff: float
    max_effort: int


class Candidate(NamedTuple):
    """A stage that a route may be extended by, with the price of what follows it at least."""

    u: int
    last: int
    d: int
    final: bool
    rest: float
    egress: float


def room_for_step_labels(arrays: ProblemArrays, num_bounds: int) -> StepLabels:
    """Return room for searches with so many bounds on units."""
    return StepLabels(
        records=np.empty(MAX_LABELS, dtype=LABEL),
        used=np.empty((MAX_LABELS, num_bounds), dtype=np.int32),
        heads=np.empty((arrays.num_layers, arrays.num_types, arrays.classes_of.shape[1]), dtype=np.int32),
    )


@nb.njit(cache=True)
def pieces_of(step, units):  # type: ignore[no-untyped-def]
    """Return the micro-batches that so many units of the first stage make of a batch; infinity where not priced."""
    if step.micro_batch == 0.0:
        return math.inf
    return units * math.ceil(step.batch / units / step.micro_batch)


@nb.njit(cache=True)
def step_seconds(arrays, step, types, lasts, units, servers):  # type: ignore[no-untyped-def]
    """Return what a step of such stages over servers takes, what is fixed left out."""
    parts = stage_list(arrays, types, lasts, len(types))
    pieces = pieces_of(step, units[0])
    filled_s, paced_s = 0.0, 0.0
    if step.has_servers:
        filled_s = step.server_s / max(pieces, servers)
        paced_s = step.server_s / servers - filled_s
    for s in range(len(parts)):
        seconds = seconds_on(parts[s], units[s])
        passing_s = units[s] * seconds / max(pieces, units[s])
        filled_s += passing_s
        paced_s = max(paced_s, seconds - passing_s)
    return filled_s + paced_s


@nb.njit(cache=True)
def _room_of_type(bounds, used, u):  # type: ignore[no-untyped-def]
    """Return how many units of a type there still is room for."""
    most = 1 << 30
    for c in range(bounds.caps.size):
        if bounds.weights[c, u] > 0:
            most = min(most, (bounds.caps[c] - used[c]) // bounds.weights[c, u])
    return most


@nb.njit(cache=True)
def _most_servers(bounds, u, units):  # type: ignore[no-untyped-def]
    """Return how many servers there is room for beside so many units of the first stage."""
    most = 1 << 30
    for c in range(bounds.caps.size):
        if bounds.beside[c] > 0:
            most = min(most, bounds.caps[c] - bounds.weights[c, u] * units)
    return most


@nb.njit(cache=True)
def _is_known(known, u, units, servers):  # type: ignore[no-untyped-def]
    """Say whether a layout of one stage is one that was measured as a whole, and is not priced by formulas."""
    same = (known[:, 0] == u) & (known[:, 1] == units) & (known[:, 2] == servers)
    return same.any()


@nb.njit(cache=True)
def step_label_search(arrays, rounds, rests, labels, step, bounds, known, search, types, lasts, units):  # type: ignore[no-untyped-def]
    """Return (whether it ended, price, stages, servers) of the cheapest stages below the cutoff within the time.

    `known` are (type, units, servers) of single stages that were measured as a whole.
    """
    num_layers, num_types = arrays.crossing_bytes.size, arrays.price_per_hour.size
    records, heads = labels.records, labels.heads
    heads[:] = -1
    root = records[0]
    root.price, root.filled_s, root.paced_s, root.pieces = 0.0, 0.0, 0.0, 0.0
    root.depth, root.servers, root.last, root.next, root.opened = 0, 0, -1, -1, 0
    labels.used[0] = 0
    tally, best = np.array([1, 0, -1]), np.array([search.cutoff])
    for ended_at in range(-1, num_layers - 1):
        inside = ended_at >= 0
        for t in range(num_types if inside else 1):
            for slot in range(heads.shape[2] if inside else 1):
                label = heads[ended_at, t, slot] if inside else 0
                while label >= 0:
                    for u in range(num_types):
                        if inside and arrays.slot_of[t, u] != slot:
                            continue
                        left = arrays.slot_of[u, t] if inside else 0
                        _extend(arrays, rounds, rests, labels, step, bounds, known, search, label, u, left, tally, best)
                        if tally[EFFORT] > search.max_effort or tally[COUNT] == records.size:
                            return False, math.inf, 0, 0
                    label = records[label].next
    if tally[BEST] < 0:
        return True, math.inf, 0, 0
    label = tally[BEST]
    count, servers = records[label].depth, records[label].servers
    for s in range(count - 1, -1, -1):
        record = records[label]
        types[s], lasts[s], units[s], label = record.type, record.last, record.units, record.parent
    return True, best[0], count, servers


@nb.njit(cache=True)
def _extend(arrays, rounds, rests, labels, step, bounds, known, search, label, u, left, tally, best):  # type: ignore[no-untyped-def]
    """Extend a label by every stage on type `u`, with the class of cut at `left` before it."""
    route, num_layers = labels.records[label], arrays.crossing_bytes.size
    first = route.last + 1
    r = rounds - route.depth - 1 if rounds > 0 else 0
    room = _room_of_type(bounds, labels.used[label], u)
    g = _table_for(rests, search.target_s, route.filled_s)
    if room < 1 or route.price + rests.start[g, r, first, u, left] >= best[0]:
        return
    left_class = arrays.classes_of[u, left] if first > 0 else 0
    weight = bounds.weights[bounds.scarce, u]
    for last in range(first, arrays.end_of_run[u, first]):
        final = last == num_layers - 1
        if rounds > 0 and r == 0 and not final:  # the last stage allowed has to reach the last layer
            continue
        spare_s = search.target_s - route.filled_s - rests.filled_s[route.opened, last + 1]
        if spare_s <= 0:
            continue
        for d in range(1 if final else labels.heads.shape[2]):
            right = 0 if final else arrays.classes_of[u, d]
            if right < 0:
                break
            rest = 0.0 if final else rests.end[g, r, last, u, d]
            if route.price + arrays.price_per_hour[u] + rest >= best[0]:
                continue
            parts = stage_parts(arrays, u, first, last, left_class, right)
            needed, most = whole_units(parts, spare_s), room
            if weight > 0:
                rest_units = 0.0 if final else rests.scarce[g, r, last, u, d]
                spare = bounds.caps[bounds.scarce] - labels.used[label, bounds.scarce] - rest_units + 0.5
                most = min(room, int(spare // weight)) if spare > 0 else 0
            if needed > most:
                continue
            egress = 0.0 if final else egress_usd(arrays, last, right) * 3600 / search.target_s
            stage = Candidate(u, last, d, final, rest - egress, egress)  # `rest` has the bytes of this cut too
            _count_units(
                labels,
                step,
                rests,
                bounds,
                known,
                search,
                label,
                stage,
                parts,
                arrays.price_per_hour[u],
                int(needed),
                most,
                r,
                rounds > 0,
                tally,
                best,
            )


@nb.njit(cache=True)
def _table_for(rests, target_s, filled_s):  # type: ignore[no-untyped-def]
    """Return which tables hold for stages that have the time of a step less what is filled already."""
    if math.isinf(target_s):
        return rests.shares.size - 1
    left = (1 - filled_s / target_s) * (1 + SLACK) + SLACK
    g = 0
    while g < rests.shares.size - 1 and rests.shares[g] < left:
        g += 1
    return g


@nb.njit(cache=True)
def _count_units(  # type: ignore[no-untyped-def]
    labels, step, rests, bounds, known, search, label, stage, parts, price, units, room, r, count_stages, tally, best
):
    """Extend a label by one stage with every number of units, from `units` on, that is of use."""
    route = labels.records[label]
    opens = route.depth == 0 and step.has_servers  # whether the servers are chosen here, with the first stage
    while units <= room:
        stage_price = route.price + price * units + stage.egress
        if stage_price + stage.rest >= best[0]:
            return
        seconds = seconds_on(parts, units)
        pieces = pieces_of(step, units) if route.depth == 0 else route.pieces
        passing_s = units * seconds / max(pieces, units)
        if opens:
            is_found = _count_servers(
                labels,
                step,
                rests,
                bounds,
                known,
                search,
                label,
                stage,
                stage_price,
                units,
                seconds,
                pieces,
                r,
                count_stages,
                tally,
                best,
            )
        else:
            paced_s = max(route.paced_s, seconds - passing_s)
            is_found = _keep(
                labels,
                rests,
                bounds,
                known,
                search,
                label,
                stage,
                stage_price,
                route.filled_s + passing_s,
                paced_s,
                units,
                route.servers,
                pieces,
                r,
                count_stages,
                tally,
                best,
            )
        if tally[EFFORT] > search.max_effort or tally[COUNT] == labels.records.size:
            return
        if is_found and ((stage.final and route.depth > 0) or (math.isinf(pieces) and not stage.final)):
            return  # more units cost more, and nothing that matters is better for them
        if route.depth > 0 and units <= pieces and seconds - passing_s <= route.paced_s:
            if math.isinf(pieces):
                return
            units = max(units, int(pieces))  # up to as many as micro-batches fill for no less
        units += 1


@nb.njit(cache=True)
def _count_servers(  # type: ignore[no-untyped-def]
    labels,
    step,
    rests,
    bounds,
    known,
    search,
    label,
    stage,
    stage_price,
    units,
    seconds,
    pieces,
    r,
    count_stages,
    tally,
    best,
):
    """Begin with a stage and every number of servers that is of use; return whether any was kept."""
    servers = max(1, int(np.ceil(step.server_s / search.target_s * (1 - SLACK))))
    most = _most_servers(bounds, stage.u, units)
    passing_s = units * seconds / max(pieces, units)
    is_found = False
    while servers <= most:
        price = stage_price + step.core_price * servers
        if price + stage.rest >= best[0] or tally[EFFORT] > search.max_effort:
            break
        if tally[COUNT] == labels.records.size:
            break
        served_s = step.server_s / max(pieces, servers)
        waits_s, stage_waits_s = step.server_s / servers - served_s, seconds - passing_s
        fits = _keep(
            labels,
            rests,
            bounds,
            known,
            search,
            label,
            stage,
            price,
            passing_s + served_s,
            max(stage_waits_s, waits_s),
            units,
            servers,
            pieces,
            r,
            count_stages,
            tally,
            best,
        )
        is_found = is_found or fits
        if fits and (stage.final or math.isinf(pieces)):
            break
        is_measured = stage.final and _is_known(known, stage.u, units, servers)
        if not is_measured and (step.server_s == 0.0 or (servers <= pieces and waits_s <= stage_waits_s)):
            if step.server_s == 0.0 or math.isinf(pieces):
                break  # more servers do no good
            servers = max(servers, int(pieces))  # up to as many as micro-batches fill for no less
        servers += 1
    return is_found


@nb.njit(cache=True)
def _keep(  # type: ignore[no-untyped-def]
    labels,
    rests,
    bounds,
    known,
    search,
    label,
    stage,
    price,
    filled_s,
    paced_s,
    units,
    servers,
    pieces,
    r,
    count_stages,
    tally,
    best,
):
    """Write a new label where its step can take no longer than it may; return whether it can."""
    tally[EFFORT] += 1
    route = labels.records[label]
    opened = route.opened if route.depth > 0 else min(units, rests.filled_s.shape[0] - 1)
    if filled_s + rests.filled_s[opened, stage.last + 1] + paced_s > search.target_s * (1 + SLACK):
        return False
    if stage.final and route.depth == 0 and _is_known(known, stage.u, units, servers):
        return False
    number = tally[COUNT]
    new = labels.records[number]
    new.price, new.filled_s, new.paced_s = price, filled_s, 0.0 if math.isinf(pieces) else paced_s
    new.pieces, new.depth, new.parent = pieces, route.depth + 1, label
    new.type, new.last, new.units, new.servers = stage.u, stage.last, units, servers
    new.opened = opened
    for c in range(bounds.caps.size):
        before = labels.used[label, c] if route.depth > 0 else bounds.beside[c] * servers
        labels.used[number, c] = before + bounds.weights[c, stage.u] * units
    if not stage.final:
        g, scarce = _table_for(rests, search.target_s, filled_s), bounds.scarce
        if price - stage.egress + rests.end[g, r, stage.last, stage.u, stage.d] >= best[0]:
            return True
        least = rests.scarce[g, r, stage.last, stage.u, stage.d]
        if labels.used[number, scarce] + least > bounds.caps[scarce] + 0.5:
            return True
        kept, compared = _settle(
            labels.records, labels.used, labels.heads, stage.last, stage.u, stage.d, number, count_stages
        )
        tally[COUNT] += kept
        tally[EFFORT] += compared
    elif price < best[0]:
        best[0], tally[BEST] = price, number
        tally[COUNT] += 1
    return True


@nb.njit(cache=True)
def _settle(records, used, heads, last, u, d, new, count_stages):  # type: ignore[no-untyped-def]
    """Put label `new` into the list at heads[last, u, d] unless one there is as good; take out those it beats."""
    compared = 0
    before, other = -1, heads[last, u, d]
    fresh = records[new]
    while other >= 0:
        compared += 1
        old = records[other]
        following = old.next
        no_worse = (
            old.price <= fresh.price
            and old.filled_s <= fresh.filled_s
            and old.paced_s <= fresh.paced_s
            and old.pieces >= fresh.pieces
        )
        no_better = (
            fresh.price <= old.price
            and fresh.filled_s <= old.filled_s
            and fresh.paced_s <= old.paced_s
            and fresh.pieces >= old.pieces
        )
        if count_stages:
            no_worse = no_worse and old.depth <= fresh.depth
            no_better = no_better and fresh.depth <= old.depth
        for c in range(used.shape[1]):
            if not (no_worse or no_better):
                break
            no_worse = no_worse and used[other, c] <= used[new, c]
            no_better = no_better and used[new, c] <= used[other, c]
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
    fresh.next = heads[last, u, d]
    heads[last, u, d] = new
    return 1, compared
