"""What is scarce made dear: a bound on the price of stages over servers, and legal ones where prices alone meet none.

Units and servers share cores, and every type has a limit: rows of `Room`, each a sum of weights within a cap. For any
surcharges m_c >= 0 on what a row counts, no stages within the caps cost less than

    bound(m) = cheapest(price + m weights) + (core price + m beside) servers - m caps

with the least servers that do. Surcharges rise where the cheapest stages take too much. Filling a pipeline is scarce
too: one micro-batch spends about (units) (time) / N at a stage of those units, so that many units leave little of a
step. A surcharge on every unit, of whatever type, makes that dear; it is for finding stages, not for bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dovetail.planner.arrays import Floats, Ints, ProblemArrays
from dovetail.planner.cheapest_route import Route, Workspace, cheapest, follow
from dovetail.planner.layouts.room import Room

SHARES = (0.8, 0.6, 0.9, 0.7, 0.4, 0.95, 0.5, 0.85, 0.3, 0.2)
"""Parts of a step's time that stages are sought with; what is left is for filling."""
RISES = 10
"""Times that surcharges rise for each part."""
MOST_RISE = 2.0
"""A surcharge rises by this at most at once, relative."""

Servers = Callable[[Ints, Ints, Ints, Floats], int | None]
"""Returns the least servers with which stages (types, lasts, units) fit into what is left of the caps, if any do."""
Filled = Callable[[Ints, Ints, Ints], float]
"""Returns by what factor a step of stages takes longer than it may."""


@dataclass(frozen=True, slots=True)
class CappedQuestion:
    """What stages are sought for."""

    arrays: ProblemArrays
    target_s: float
    caps: Ints
    servers: int
    """The least that do."""


class Scarce:
    """Surcharges for one problem, with those that were met at earlier throughputs."""

    def __init__(self, room: Room, work: Workspace, core_price: float) -> None:
        """Begin without any."""
        self._room, self._work, self._core_price = room, work, core_price
        self._at_bound = np.zeros(len(room.caps))
        self._met: tuple[tuple[Ints, Ints], Ints, Floats]
        """Types and last layers, units, and what they take of each row."""
        self._price, self._num_units = 0.0, 0
        self._at_share = {share: np.zeros(len(room.caps) + 1) for share in SHARES}
        size = work.start.shape[1]
        self._buffers = (np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))

    def bound(self, asked: CappedQuestion, *, cutoff: float, is_late: Callable[[], bool]) -> float:
        """Return the highest bound met on what stages and servers cost an hour, readers left out; up to `cutoff`."""
        best, surcharge = -math.inf, self._at_bound
        for _ in range(RISES):
            value = self._ask(asked, surcharge, asked.target_s)
            if value == math.inf:
                return math.inf
            _, _, units_used = self._met
            dear = float(surcharge @ self._room.beside)
            found = value + (self._core_price + dear) * asked.servers - float(surcharge @ asked.caps)
            if found > best:
                best, self._at_bound = found, surcharge
            used = units_used + self._room.beside * asked.servers
            if best >= cutoff or (used <= asked.caps).all() or is_late():
                break
            surcharge = self._risen(surcharge, used, asked.caps.astype(np.float64), self._price)
        return best

    def legal(
        self, asked: CappedQuestion, servers_for: Servers, filled: Filled, *, is_late: Callable[[], bool]
    ) -> Route | None:
        """Return legal stages with their servers, where surcharges lead to some."""
        for share in SHARES:
            surcharge = self._at_share[share]
            for _ in range(RISES):
                if is_late():
                    return None
                if self._ask(asked, surcharge, asked.target_s * share, share) == math.inf:
                    break
                (types, lasts), units, used = self._met
                servers = servers_for(types, lasts, units, asked.caps - used)
                if servers is not None:
                    self._at_share[share] = surcharge
                    return Route(types=types, lasts=lasts, units=units, servers=servers)
                all_used = used + self._room.beside * asked.servers
                rows = np.append(all_used, filled(types, lasts, units))
                surcharge = self._risen(surcharge, rows, np.append(asked.caps, 1.0), self._price)
            self._at_share[share] = surcharge / 2  # not all of it: the next throughput is another
        return None

    def _ask(self, asked: CappedQuestion, surcharge: Floats, target_s: float, share: float = 1.0) -> float:
        """Note the cheapest stages by surcharged prices; return their surcharged price."""
        arrays, rows = asked.arrays, len(self._room.caps)
        if arrays.has_egress and share != 1.0:  # as often, in less time
            arrays = arrays._replace(class_usd_per_byte=arrays.class_usd_per_byte * share)
        extra = surcharge[:rows] @ self._room.weights + (surcharge[rows] if len(surcharge) > rows else 0.0)
        value = float(cheapest(arrays, self._work, arrays.price_per_hour + extra, target_s, 1.0))
        if value == math.inf:
            return value
        count = follow(arrays, self._work, target_s, *self._buffers)
        types, lasts, units = (buffer[:count].copy() for buffer in self._buffers)
        used = (self._room.weights[:, types] @ units).astype(np.float64)
        self._met = ((types, lasts), units, used)
        self._price = float(arrays.price_per_hour[types] @ units)
        self._num_units = int(units.sum())
        return value

    def _risen(self, surcharge: Floats, used: Floats, caps: Floats, price: float) -> Floats:
        """Return surcharges that have risen where too much is used, each by its part of the price for what is used."""
        over = np.clip(used / np.maximum(caps, 0.5) - 1.0, 0.0, MOST_RISE)
        counted = used.copy()
        if len(used) > len(self._room.caps):
            counted[-1] = self._num_units
        each = price / np.maximum(counted, 1.0)
        risen: Floats = surcharge + over * (0.5 * each + surcharge)
        return risen
