"""Pricing many proposed plans at once: types per layer in, cost and units out."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numba as nb
import numpy as np

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.baselines.heterps_provision import provision_as_in_paper
from dovetail.planner.cheapest_route import Route
from dovetail.planner.provision import egress_rate, provision, stage_list, stages_of
from dovetail.planner.stage_kernel import seconds_on, whole_units

CLOSE_ENOUGH = 1e-6
"""How exactly proposals are provisioned: finer would cost time and change no ranking."""
PENALTY = 1.0
"""The least shortfall of an illegal plan."""
CANNOT_BE = 10 * PENALTY
"""The shortfall of stages that cannot be at all: worse than of those that only miss a demand."""
A_STAGE_TOO_MANY = 0.2
"""What each stage beyond the most allowed adds: about as much as a speed a fifth below the floor, log(1.2)."""

Provisioning = Literal["exact", "paper"]


class Proposal(NamedTuple):
    """Plans to be priced: the type of every layer, and the units at every stage's first layer, if they are chosen."""

    assignments: Ints  # [N, L]
    units: Ints | None = None  # [N, L]


class Scores(NamedTuple):
    """What each proposed plan costs (infinity where it is illegal) and by how much it misses the demands."""

    rates: Floats  # [N] USD per hour over samples/s, bytes between sites included
    shortfalls: Floats  # [N] 0 for a legal plan; the more is missing, the larger
    units: Ints  # [N, L] units of stage s at [n, s]
    dearest_log_rate: float  # of all legal plans priced so far

    def reward(self) -> Floats:
        """Return a number to maximise: minus the logarithm of the cost, lower for illegal plans by how illegal."""
        legal = np.isfinite(self.rates)
        logs = np.log(self.rates, where=legal, out=np.zeros_like(self.rates))
        return -np.where(legal, logs, self.dearest_log_rate + self.shortfalls)


class Scorer:
    """Prices proposals for one problem, always by the same demands."""

    def __init__(
        self,
        arrays: ProblemArrays,
        *,
        min_samples_per_s: float,
        max_stages: int | None,
        provisioning: Provisioning = "exact",
    ) -> None:
        self.arrays = arrays
        self.min_samples_per_s = min_samples_per_s
        self.max_stages = max_stages or arrays.num_layers
        self.provisioning = provisioning
        self.dearest_log_rate = -math.inf

    def score(self, proposal: Proposal) -> Scores:
        """Return what each plan costs."""
        assignments = np.ascontiguousarray(proposal.assignments, dtype=np.int64)
        rates, shortfalls = np.empty(len(assignments)), np.empty(len(assignments))
        units = np.zeros_like(assignments)
        demands = (self.min_samples_per_s, self.max_stages)
        if proposal.units is None:
            _score(self.arrays, assignments, *demands, self.provisioning == "paper", rates, shortfalls, units)
        else:
            chosen = np.ascontiguousarray(proposal.units, dtype=np.int64)
            _score_units(self.arrays, assignments, chosen, *demands, rates, shortfalls, units)
        if np.isfinite(rates).any():
            self.dearest_log_rate = max(self.dearest_log_rate, math.log(rates[np.isfinite(rates)].max()))
        known = self.dearest_log_rate if math.isfinite(self.dearest_log_rate) else 0.0
        return Scores(rates, shortfalls, units, known)

    def route(self, assignment: Ints, units: Ints) -> Route:
        """Return one priced proposal as a route."""
        types, lasts = np.zeros_like(assignment), np.zeros_like(assignment)
        count = stages_of(assignment, types, lasts)
        return Route(types=types[:count].copy(), lasts=lasts[:count].copy(), units=units[:count].copy())


@nb.njit(cache=True)
def _score(arrays, assignments, min_samples_per_s, max_stages, in_paper, rates, shortfalls, units):  # type: ignore[no-untyped-def]
    """Provision and price every assignment."""
    types, lasts = np.empty_like(assignments[0]), np.empty_like(assignments[0])
    for n in range(len(assignments)):
        count = stages_of(assignments[n], types, lasts)
        rates[n], shortfalls[n] = math.inf, 0.0
        parts = stage_list(arrays, types, lasts, count)
        if len(parts) == 0:
            shortfalls[n] = CANNOT_BE
            continue
        if count > max_stages:
            shortfalls[n] = PENALTY + A_STAGE_TOO_MANY * (count - max_stages)
            continue
        if in_paper:
            rates[n] = provision_as_in_paper(arrays, types, parts, min_samples_per_s, units[n])
            rates[n] += egress_rate(arrays, types, lasts, count)
        else:
            rates[n] = provision(arrays, types, lasts, count, min_samples_per_s, CLOSE_ENOUGH, units[n])
        if rates[n] == math.inf:
            shortfalls[n] = PENALTY + _missing(arrays, types, parts, min_samples_per_s)


@nb.njit(cache=True)
def _score_units(arrays, assignments, chosen, min_samples_per_s, max_stages, rates, shortfalls, units):  # type: ignore[no-untyped-def]
    """Price every assignment with the units it was proposed with, less what its slowest stage leaves idle."""
    types, lasts = np.empty_like(assignments[0]), np.empty_like(assignments[0])
    for n in range(len(assignments)):
        count = stages_of(assignments[n], types, lasts)
        rates[n], shortfalls[n] = math.inf, 0.0
        parts = stage_list(arrays, types, lasts, count)
        if len(parts) == 0 or count > max_stages:
            shortfalls[n] = CANNOT_BE
            continue
        slowest_s, first, fits = 0.0, 0, True
        for s in range(count):
            if parts[s][4] > arrays.limit[types[s]]:
                fits = False
                break
            units[n, s] = max(chosen[n, first], int(parts[s][4]))  # no fewer than memory asks for
            slowest_s = max(slowest_s, seconds_on(parts[s], units[n, s]))
            first = lasts[s] + 1
        if not fits:
            shortfalls[n] = CANNOT_BE
            continue
        hourly = 0.0
        used = np.zeros_like(arrays.limit)
        for s in range(count):
            units[n, s] = min(units[n, s], int(whole_units(parts[s], slowest_s)))
            used[types[s]] += units[n, s]
            hourly += arrays.price_per_hour[types[s]] * units[n, s]
        reached = arrays.batch / slowest_s
        excess = 0.0
        for t in range(len(used)):
            excess += max(0.0, used[t] / max(arrays.limit[t], 1) - 1)
        too_slow = math.log(min_samples_per_s / reached) if reached < min_samples_per_s * (1 - 1e-9) else 0.0
        if excess > 0 or too_slow > 0:
            shortfalls[n] = PENALTY + math.log1p(excess) + too_slow
        else:
            rates[n] = hourly / reached + egress_rate(arrays, types, lasts, count)


@nb.njit(cache=True)
def _missing(arrays, types, parts, min_samples_per_s):  # type: ignore[no-untyped-def]
    """Return by what factor, as a logarithm, the fastest that stages can go within limits misses the floor."""
    low, high = -20.0, 0.0  # the reachable fraction of the floor, as a logarithm
    for _ in range(20):
        middle = (low + high) / 2
        target_s = arrays.batch / (min_samples_per_s * math.exp(middle)) if min_samples_per_s > 0 else math.inf
        used = np.zeros_like(arrays.limit)
        fits = True
        for s in range(len(parts)):
            units = whole_units(parts[s], target_s)
            if units > arrays.limit[types[s]]:
                fits = False
                break
            used[types[s]] += int(units)
            fits = fits and used[types[s]] <= arrays.limit[types[s]]
        if fits:
            low = middle
        else:
            high = middle
    return -low
