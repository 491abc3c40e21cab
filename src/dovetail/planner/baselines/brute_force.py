"""Brute force: price every possible choice of stages. The yardstick for small problems."""

from __future__ import annotations

import math
from decimal import Decimal

import numba as nb
import numpy as np

from dovetail.errors import PlanError
from dovetail.planner.arrays import ProblemArrays
from dovetail.planner.cheapest_route import Route
from dovetail.planner.provision import provision
from dovetail.planner.stage_kernel import STEP

MOST_CHOICES = 1_000_000


def cheapest_of_all(
    arrays: ProblemArrays, *, min_samples_per_s: float, max_stages: int | None, split_stages: bool
) -> tuple[float, Route | None]:
    """Return the least USD per hour over samples/s and its route; refuse where there are too many choices to try."""
    per_layer = arrays.num_types + 1 if split_stages else arrays.num_types
    choices = arrays.num_types * per_layer ** (arrays.num_layers - 1)
    if choices > MOST_CHOICES:
        raise PlanError(
            f"brute force would have to price {_in_figures(choices)} plans ({arrays.num_types} types, "
            f"{arrays.num_layers} layers), and stops at {MOST_CHOICES:,}",
            hint="use --method exact: it proves its plan without trying them all",
        )
    types, lasts, units = (np.zeros(arrays.num_layers, dtype=np.int64) for _ in range(3))
    rate, count = _try_all(
        arrays, choices, per_layer, max_stages or arrays.num_layers, min_samples_per_s, types, lasts, units
    )
    if math.isinf(rate):
        return rate, None
    return rate, Route(types=types[:count].copy(), lasts=lasts[:count].copy(), units=units[:count].copy())


def _in_figures(count: int) -> str:
    """Return a count in full, or as a power of ten where it is long (and may be too long for a float)."""
    return f"{count:,}" if count < 10**12 else f"{Decimal(count):.3e}"


@nb.njit(cache=True)
def _try_all(arrays, choices, per_layer, max_stages, min_samples_per_s, best_types, best_lasts, best_units):  # type: ignore[no-untyped-def]
    """Price every choice: a number's digits are the types, and the digit T, where there is one, means no new stage."""
    num_layers, num_types = arrays.crossing_bytes.size, arrays.price_per_hour.size
    types, lasts, units = best_types.copy(), best_lasts.copy(), best_units.copy()
    best, best_count = math.inf, 0
    for choice in range(choices):
        digits, count = choice, 0
        for layer in range(num_layers):
            base = num_types if layer == 0 else per_layer
            digit = digits % base
            digits //= base
            same_stage = digit == num_types or (per_layer == num_types and count > 0 and digit == types[count - 1])
            if layer == 0 or not same_stage:
                types[count] = digit
                count += 1
            lasts[count - 1] = layer
        if count > max_stages:
            continue
        rate = provision(arrays, types, lasts, count, min_samples_per_s, STEP, units)
        if rate < best:
            best, best_count = rate, count
            best_types[:], best_lasts[:], best_units[:] = types, lasts, units
    return best, best_count
