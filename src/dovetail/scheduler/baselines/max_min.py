"""Max-min fairness that knows types, for jobs of one size, in the manner of Gavel.

Each job has one size a type: the most it may use up to an equal share of the cluster, at least its least. A linear
programme finds the shares of time x[job, type] that make the worst-off job as fast as can be,

    max min_j 1/weight_j sum_t x[j,t] f_j(t) size_j / f_j(equal share)     sum_t x[j,t] <= 1,  sum_j size x[j,t] <= C_t

and every decision runs the jobs furthest behind their shares, type by type in the order of the file, until the workers
are out. The programme is solved, and the count of what each has had begins anew, when jobs or nodes come or go;
between, `round_s` makes jobs take turns.
"""

from __future__ import annotations

import numpy as np

from dovetail.scheduler.baselines.seats import wanted_workers
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray


class MaxMin:
    """Time shares by linear programme, then whoever is furthest behind."""

    def __init__(self, *, knows_types: bool = True) -> None:
        """Start with nobody served; `knows_types = False` gives every job the same share of every type."""
        self._knows_types = knows_types
        self._served_s: dict[tuple[int, int], float] = {}
        self._known: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._shares = np.zeros((0, 0))
        self._sizes = np.zeros((0, 0), np.int64)
        self._last: list[tuple[int, int]] = []
        self._last_s = 0.0
        self._since_s: dict[int, float] = {}

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Credit what ran, work out shares where jobs came or went, and run those furthest behind."""
        for row, kind in self._last:
            self._served_s[row, kind] = self._served_s.get((row, kind), 0.0) + now_s - self._last_s
        rows = tuple(view.rows.tolist())
        known = (rows, tuple(view.capacity.tolist()))
        if known != self._known:
            self._known = known
            self._served_s, self._since_s = {}, {}
            self._sizes = _sizes(view)
            self._shares = _fair_shares(view, self._sizes, knows_types=self._knows_types)
        for row in rows:
            self._since_s.setdefault(row, now_s)
        chosen = self._furthest_behind(view, rows, now_s)
        self._last, self._last_s = [(row, kind) for row, kind, _ in chosen], now_s
        columns = np.array(chosen, np.int64).reshape(-1, 3)
        return Allocation(rows=columns[:, 0], types=columns[:, 1], workers=columns[:, 2])

    def _furthest_behind(self, view: ClusterView, rows: tuple[int, ...], now_s: float) -> list[tuple[int, int, int]]:
        """Return (row, type, workers) of the jobs with the most share per time received, while workers last."""
        waits = []
        for position, row in enumerate(rows):
            there_s = now_s - self._since_s[row] + 1.0
            for kind in range(view.num_types):
                share = self._shares[position, kind]
                if self._sizes[position, kind] > 0:
                    received = (self._served_s.get((row, kind), 0.0) + 1e-3) / there_s
                    runs_here = view.type[row] == kind
                    waits.append((kind, -share / received, -share, not runs_here, position))
        room = view.capacity.copy()
        given: dict[int, tuple[int, int, int]] = {}
        for kind, _, _, _, position in sorted(waits):
            size = int(self._sizes[position, kind])
            if position not in given and size <= room[kind]:
                given[position] = (rows[position], kind, size)
                room[kind] -= size
        return list(given.values())


def _sizes(view: ClusterView) -> IntArray:
    """Return each job's size on each type: the most it may use up to an equal share of all workers; 0 = cannot run."""
    share = max(1, int(view.capacity.sum()) // max(len(view.rows), 1))
    return np.array(
        [
            [wanted_workers(view.speed, row, kind, view.capacity[kind], share) for kind in range(view.num_types)]
            for row in view.rows.tolist()
        ],
        np.int64,
    ).reshape(-1, view.num_types)


def _fair_shares(view: ClusterView, sizes: IntArray, *, knows_types: bool) -> FloatArray:
    """Return x[job, type]: the shares of time with the largest minimum, then the largest sum."""
    if not knows_types:
        return np.where(sizes > 0, view.capacity / max(view.capacity.sum(), 1), 0.0)
    from scipy.optimize import linprog  # noqa: PLC0415
    from scipy.sparse import coo_array  # noqa: PLC0415

    count, kinds = sizes.shape
    speeds = np.take_along_axis(view.speed[view.rows], sizes[:, :, None], axis=2)[:, :, 0] * (sizes > 0)
    equal = (speeds * view.capacity).sum(axis=1) / max(view.capacity.sum(), 1)
    gains = speeds * sizes / np.maximum(equal, 1e-300)[:, None] / view.weight[view.rows][:, None]
    scale = gains.max() or 1.0
    gains = gains / scale
    flat = np.arange(count * kinds)
    job, kind = flat // kinds, flat % kinds
    worst = count * kinds
    entries = [
        (
            np.concatenate((job, np.arange(count))),
            np.concatenate((flat, np.full(count, worst))),
            np.concatenate((-gains.ravel(), np.ones(count))),
        ),
        (count + job, flat, np.ones(len(flat))),
        (2 * count + kind, flat, sizes.ravel().astype(float)),
    ]
    rows, columns, values = (np.concatenate([entry[part] for entry in entries]) for part in range(3))
    matrix = coo_array((values, (rows, columns)), shape=(2 * count + kinds, worst + 1)).tocsr()
    limits = np.concatenate((np.zeros(count), np.ones(count), view.capacity.astype(float)))
    objective = np.concatenate((-1e-3 * gains.ravel() / max(count, 1), [-1.0]))
    most = [(0.0, 1.0 if sizes.ravel()[place] > 0 else 0.0) for place in flat]
    found = linprog(objective, A_ub=matrix, b_ub=limits, bounds=[*most, (0, None)], method="highs")
    return np.asarray(found.x[:worst]).reshape(count, kinds) if found.x is not None else np.ones((count, kinds))
