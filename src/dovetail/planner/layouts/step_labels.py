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

from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.provision import stage_list
from dovetail.planner.stage_kernel import SLACK, egress_usd, seconds_on, stage_parts, whole_units

MAX_LABELS = 200_000
LABEL = np.dtype(
    [
        ("price", np.float64),
        ("filled_s", np.float64),  # the sum of what one micro-batch spends at each stage
        ("paced_s", np.float64),  # the longest of what a stage takes beyond that
        ("pieces", np.float64),  # micro-batches of a batch: what the first stage's units make of it
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


class Step(NamedTuple):
    """What a step takes beside its stages."""

    batch: float
    micro_batch: float  # 0 where filling and draining is not priced
    server_s: float  # of one core for a batch
    has_servers: bool
    core_price: float


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
def _room_of_type(weights, caps, used, u):  # type: ignore[no-untyped-def]
    """Return how many units of a type there still is room for."""
    most = 1 << 30
    for c in range(caps.size):
        if weights[c, u] > 0:
            most = min(most, (caps[c] - used[c]) // weights[c, u])
    return most


@nb.njit(cache=True)
def _is_known(known, u, units, servers):  # type: ignore[no-untyped-def]
    """Say whether a layout of one stage is one that was measured as a whole, and is not priced by formulas."""
    for n in range(known.shape[0]):
        if known[n, 0] == u and known[n, 1] == units and known[n, 2] == servers:
            return True
    return False


@nb.njit(cache=True)
def step_label_search(  # type: ignore[no-untyped-def]  # noqa: C901
    arrays, work, labels, step, price, weights, beside, caps, rest_s, known, target_s, cutoff, max_effort, types, lasts,
    units,
):  # fmt: skip
    """Return (ended, price, stages, servers) of the cheapest stages below `cutoff` whose step takes `target_s`.

    `work` holds the cheapest rest at that time, `rest_s` the least that one micro-batch spends from each layer on.
    `known` are (type, units, servers) of single stages that were measured as a whole.
    """
    num_layers, num_types, num_slots = arrays.crossing_bytes.size, price.size, arrays.classes_of.shape[1]
    num_bounds = caps.size
    records, used, heads = labels.records, labels.used, labels.heads
    heads[:] = -1
    num_labels, effort = 1, 0
    best, best_label = cutoff, -1
    limit_s = target_s * (1 + SLACK)
    rounds = work.rounds
    zero = np.zeros(num_bounds, dtype=np.int32)
    for ended_at in range(-1, num_layers - 1):
        inside = ended_at >= 0
        opens = not inside and step.has_servers  # whether the servers are chosen here, with the first stage
        first = ended_at + 1
        for t in range(num_types if inside else 1):
            for slot in range(num_slots if inside else 1):
                label = heads[ended_at, t, slot] if inside else 0
                while label >= 0:
                    price_so_far = records[label].price if inside else 0.0
                    filled_s = records[label].filled_s if inside else 0.0
                    paced_s = records[label].paced_s if inside else 0.0
                    depth = records[label].depth if inside else 0
                    r = rounds - depth - 1 if rounds > 0 else 0
                    for u in range(num_types):
                        left = arrays.slot_of[u, t] if inside else 0
                        if inside and arrays.slot_of[t, u] != slot:
                            continue
                        if price_so_far + work.start[r, first, u, left] >= best:
                            continue
                        stop = arrays.end_of_run[u, first]
                        room = _room_of_type(weights, caps, used[label] if inside else zero, u)
                        if room < 1:
                            continue
                        for last in range(first, stop):
                            final = last == num_layers - 1
                            if rounds > 0 and r == 0 and not final:
                                continue
                            if filled_s + rest_s[last + 1] > limit_s:
                                continue
                            for d in range(1 if final else num_slots):
                                right = 0 if final else arrays.classes_of[u, d]
                                if right < 0:
                                    break
                                rest = 0.0 if final else work.end[r, last, u, d]
                                if price_so_far + price[u] + rest >= best:
                                    continue
                                left_class = arrays.classes_of[u, left] if inside else 0
                                parts = stage_parts(arrays, u, first, last, left_class, right)
                                spare_s = target_s - filled_s - rest_s[last + 1]
                                least = whole_units(parts, spare_s) if spare_s > 0 else math.inf
                                if least > room:
                                    continue
                                egress = 0.0 if final else egress_usd(arrays, last, right) * 3600 / target_s
                                k = int(least)
                                while k <= room:
                                    stage_price = price_so_far + price[u] * k + egress
                                    if stage_price + rest >= best:
                                        break
                                    seconds = seconds_on(parts, k)
                                    pieces = records[label].pieces if inside else pieces_of(step, k)
                                    passing_s = k * seconds / max(pieces, k)
                                    servers = records[label].servers if inside else 0
                                    most_servers = servers
                                    if opens:
                                        servers = max(1, int(math.ceil(step.server_s / target_s * (1 - SLACK))))
                                        most_servers = 1 << 30
                                        for c in range(num_bounds):
                                            if beside[c] > 0:
                                                most_servers = min(most_servers, caps[c] - weights[c, u] * k)
                                    is_found = False
                                    while servers <= most_servers:
                                        effort += 1
                                        if effort > max_effort or num_labels == records.size:
                                            return False, math.inf, 0, 0
                                        new_price, new_filled_s = stage_price, filled_s + passing_s
                                        new_paced_s = max(paced_s, seconds - passing_s)
                                        enough = not opens or step.server_s == 0.0  # more servers do no good
                                        if opens:
                                            new_price += step.core_price * servers
                                            served_s = step.server_s / max(pieces, servers)
                                            waits_s = step.server_s / servers - served_s
                                            new_filled_s += served_s
                                            enough = enough or (servers <= pieces and waits_s <= new_paced_s)
                                            new_paced_s = max(new_paced_s, waits_s)
                                        if new_price + rest >= best:
                                            break
                                        fits = new_filled_s + rest_s[last + 1] + new_paced_s <= limit_s
                                        if fits and final and depth == 0 and _is_known(known, u, k, servers):
                                            fits, enough = False, not opens
                                        if fits:
                                            new = records[num_labels]
                                            new.price, new.filled_s = new_price, new_filled_s
                                            new.paced_s = 0.0 if math.isinf(pieces) else new_paced_s
                                            new.pieces, new.depth, new.parent = pieces, depth + 1, label
                                            new.type, new.last, new.units, new.servers = u, last, k, servers
                                            for c in range(num_bounds):
                                                before = used[label, c] if inside else beside[c] * servers
                                                used[num_labels, c] = before + weights[c, u] * k
                                            is_found = True
                                            if final:
                                                best, best_label = new_price, num_labels
                                                num_labels += 1
                                            else:
                                                kept, compared = _settle(
                                                    records, used, heads, last, u, d, num_labels, rounds > 0
                                                )
                                                num_labels += kept
                                                effort += compared
                                        if not opens or (fits and (final or math.isinf(pieces))):
                                            break
                                        if enough:  # up to as many as micro-batches, and more fill for less
                                            if math.isinf(pieces) or step.server_s == 0.0:
                                                break
                                            servers = max(servers, int(pieces))
                                        servers += 1
                                    if is_found and ((inside and final) or (math.isinf(pieces) and not final)):
                                        break  # more units cost more, and nothing that matters is better for them
                                    if inside and k <= pieces and seconds - passing_s <= paced_s:
                                        if math.isinf(pieces):
                                            break
                                        k = max(k, int(pieces))  # up to as many as micro-batches fill for no less
                                    k += 1
                    label = records[label].next if inside else -1
    if best_label < 0:
        return True, math.inf, 0, 0
    label, count = best_label, records[best_label].depth
    servers = records[best_label].servers
    for s in range(count - 1, -1, -1):
        record = records[label]
        types[s], lasts[s], units[s], label = record.type, record.last, record.units, record.parent
    return True, best, count, servers


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
