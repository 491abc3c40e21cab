"""A price for workers, and what it proves.

With a price p_t >= 0 a worker of type t, no allocation is worth more than

    L(p) = sum_t p_t C_t + sum_j max over the options of j (or nothing) of  value - p . workers

(Lagrange). Prices at which nobody asks for more than there is are found type by type (`clear`); from there subgradient
steps make L least, and each step's best options, trimmed to what fits and filled up, are an allocation too. An option
whose priced value lies further below its job's best than L lies above the best allocation found is in no better one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.scheduler.view import FloatArray, IntArray

STEPS = 120
SWEEPS, HALVINGS = 3, 24
"""How often each type's price is found again, and how finely."""


@njit(cache=True, nogil=True)
def clear(
    jobs: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    values: FloatArray,
    capacity: IntArray,
    prices: FloatArray,
) -> None:
    """Set prices in place, type by type, so that the best options of `jobs` take no more workers than there are.

    An option is best at an interval of prices. So a job with the same one at both ends of where the price is looked for
    has it all the way, and is not asked again: each halving asks those that are left, fewer every time.
    """
    at_low, at_high, at_middle = np.empty_like(jobs), np.empty_like(jobs), np.empty_like(jobs)
    for _ in range(SWEEPS):
        for kind in range(len(prices)):
            low, high = 0.0, max(2.0 * prices[kind], 1e-12)
            prices[kind] = 0.0
            asking = jobs.copy()
            if _ask(asking, first, types, workers, values, prices, kind, at_low) <= capacity[kind]:
                continue
            prices[kind] = high
            while _ask(asking, first, types, workers, values, prices, kind, at_high) > capacity[kind]:
                low, high = high, 2.0 * high
                prices[kind] = high
                asking = _still_asking(asking, types, kind, at_low, at_high)
            settled = 0
            for _ in range(HALVINGS):
                asking, now_settled = _undecided(asking, types, workers, kind, at_low, at_high)
                settled += now_settled
                prices[kind] = (low + high) / 2.0
                if settled + _ask(asking, first, types, workers, values, prices, kind, at_middle) > capacity[kind]:
                    low = prices[kind]
                    at_low[: len(asking)] = at_middle[: len(asking)]
                else:
                    high = prices[kind]
                    at_high[: len(asking)] = at_middle[: len(asking)]
            prices[kind] = high


@njit(cache=True, nogil=True)
def _ask(
    jobs: IntArray,
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    values: FloatArray,
    prices: FloatArray,
    kind: int,
    chosen: IntArray,
) -> int:
    """Write down the jobs' best options at these prices, and return how many workers of a type are in them."""
    total = 0
    for place in range(len(jobs)):
        best, best_value = -1, 0.0
        for option in range(first[jobs[place]], first[jobs[place] + 1]):
            value = values[option] - prices[types[option]] * workers[option]
            if value > best_value:
                best, best_value = option, value
        chosen[place] = best
        if best >= 0 and types[best] == kind:
            total += workers[best]
    return total


@njit(cache=True, nogil=True)
def _still_asking(asking: IntArray, types: IntArray, kind: int, at_low: IntArray, at_high: IntArray) -> IntArray:
    """Go on from the upper price as the lower one: who does not want the type there wants it at no higher price."""
    count = 0
    for place in range(len(asking)):
        option = at_high[place]
        if option >= 0 and types[option] == kind:
            asking[count], at_low[count] = asking[place], option
            count += 1
    return asking[:count]


@njit(cache=True, nogil=True)
def _undecided(
    asking: IntArray, types: IntArray, workers: IntArray, kind: int, at_low: IntArray, at_high: IntArray
) -> tuple[IntArray, int]:
    """Return who has other options at the two prices, and how many workers the others have at both."""
    count, settled = 0, 0
    for place in range(len(asking)):
        option = at_low[place]
        if option != at_high[place]:
            asking[count], at_low[count], at_high[count] = asking[place], option, at_high[place]
            count += 1
        elif option >= 0 and types[option] == kind:
            settled += workers[option]
    return asking[:count], settled


@njit(cache=True, nogil=True)
def price_workers(
    first: IntArray, types: IntArray, workers: IntArray, values: FloatArray, capacity: IntArray
) -> tuple[float, FloatArray, IntArray, float]:
    """Return the least bound found, its prices, the best choice found (-1 = none) and its value."""
    num_jobs, num_types = len(first) - 1, len(capacity)
    prices = np.zeros(num_types)
    clear(np.arange(num_jobs), first, types, workers, values, capacity, prices)
    best_prices = prices.copy()
    best_bound, best_value = np.inf, -np.inf
    best_choice = np.full(num_jobs, -1, np.int64)
    choice = np.full(num_jobs, -1, np.int64)
    margin = np.zeros(num_jobs)
    scale, since_better = 1.0, 0
    for _ in range(STEPS):
        used = np.zeros(num_types)
        bound = 0.0
        for kind in range(num_types):
            bound += prices[kind] * capacity[kind]
        for job in range(num_jobs):
            choice[job], margin[job] = -1, 0.0
            for option in range(first[job], first[job + 1]):
                priced = values[option] - prices[types[option]] * workers[option]
                if priced > margin[job]:
                    choice[job], margin[job] = option, priced
            if choice[job] >= 0:
                used[types[choice[job]]] += workers[choice[job]]
                bound += margin[job]
        if bound < best_bound - 1e-9 * abs(bound):
            best_bound, since_better = bound, 0
            best_prices[:] = prices
        else:
            since_better += 1
            if since_better >= 5:
                scale, since_better = scale * 0.6, 0
        fitted, value = _fit(first, types, workers, values, capacity, choice, margin)
        if value > best_value:
            best_value = value
            best_choice[:] = fitted
        over = used - capacity
        norm = (over * over).sum()
        if norm == 0 or best_bound - best_value <= 1e-12 * abs(best_bound):
            break
        step = scale * max(bound - best_value, 1e-9 * abs(bound)) / norm
        prices = np.maximum(prices + step * over, 0.0)
    return best_bound, best_prices, best_choice, best_value


@njit(cache=True, nogil=True)
def _fit(
    first: IntArray,
    types: IntArray,
    workers: IntArray,
    values: FloatArray,
    capacity: IntArray,
    choice: IntArray,
    margin: FloatArray,
) -> tuple[IntArray, float]:
    """Keep the choices with the largest margin while they fit, then give the rest what still fits best."""
    room = capacity.copy()
    fitted = np.full(len(choice), -1, np.int64)
    total = 0.0
    order = np.argsort(-margin)
    for job in order:
        option = choice[job]
        if option >= 0 and workers[option] <= room[types[option]]:
            fitted[job] = option
            room[types[option]] -= workers[option]
            total += values[option]
    for job in order:
        held = fitted[job]
        best, best_gain = -1, 0.0
        for option in range(first[job], first[job + 1]):
            free = room[types[option]]
            if held >= 0 and types[held] == types[option]:
                free += workers[held]
            gain = values[option] - (values[held] if held >= 0 else 0.0)
            if workers[option] <= free and gain > best_gain:
                best, best_gain = option, gain
        if best >= 0:
            if held >= 0:
                room[types[held]] += workers[held]
            room[types[best]] -= workers[best]
            fitted[job] = best
            total += best_gain
    return fitted, total


@njit(cache=True, nogil=True)
def within_gap(
    first: IntArray, types: IntArray, workers: IntArray, values: FloatArray, prices: FloatArray, gap: float
) -> tuple[IntArray, IntArray]:
    """Return which options may be in a better allocation (1), and which jobs may go without any (1)."""
    kept = np.zeros(len(values), np.int64)
    may_wait = np.zeros(len(first) - 1, np.int64)
    for job in range(len(first) - 1):
        top = 0.0
        for option in range(first[job], first[job + 1]):
            top = max(top, values[option] - prices[types[option]] * workers[option])
        may_wait[job] = top <= gap
        for option in range(first[job], first[job + 1]):
            if top - (values[option] - prices[types[option]] * workers[option]) <= gap:
                kept[option] = 1
    return kept, may_wait
