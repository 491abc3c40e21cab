"""The default: the exact optimum, at every decision, of a value that cares for everybody's completion time.

Each job j may get any type t and any sensible number of workers w, or wait. Of all allocations that fit, the one with
the greatest sum of

    value_j(t, w) = u_j  s_j(t, w)  keep_j(t, w)

is found exactly (`dovetail.scheduler.allocate`), where

    s_j     is the speed there over the job's best speed a worker: its speed-up, on slow types less than its workers;
    keep_j  is 1 for the workers a job already has and H / (H + restart) for any others: what is left of a horizon H
            after paying the job's own restart. For a job that waits H is the time it would run. For one that runs H is
            short, the shorter the less it has run since its last start, so that few are moved and none again and again;
    u_j     is what a second's work on the job is worth:

    u_j = weight_j ((1 - k) (rank_j / n) ** RANK + k (least_j / drain) ** LONG + AGE (due_j / latest) ** OLD + waited)

`rank_j` counts the n jobs from the one with the most work left: short jobs weigh more, by the root of their rank, which
is what minimises the mean when speed-ups are concave. `least_j` is the least time in which the job could be done and
`drain` about the least in which all could: a long job that would end up last weighs more. `due_j` is a job's age plus
`least_j`, the least completion time it can still have, and `latest` the largest of these. `waited` grows without
bound while a job waits, so nobody starves. The knob goes from the mean completion time (0) to the makespan (1), where
k = 0.8: beyond, nothing is won. While there are few jobs, whose order hardly moves the mean, k rises by itself.

A job that runs and would have to stop is worth a little more, so whole jobs are evicted, and the fewest. Sizes are
powers of two, whole nodes, and the least and the most a job may use. Workers nobody wants then go to jobs that gain
more by them than the restart costs: more of their type, or a better type.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from dovetail.scheduler.allocate import Options, best_choice
from dovetail.scheduler.view import Allocation, ClusterView, FloatArray, IntArray

DEFAULT_KNOB = 0.35


class Tuning(NamedTuple):
    """The constants of the value, found on workloads of other seeds than those that results are reported on."""

    full: float = 0.8
    """k at the end of the knob."""
    rank: float = 0.5
    """RANK: 0 = all jobs weigh the same, 1 = by rank; the root is what concave speed-ups ask for."""
    long: float = 2.5
    """LONG: how sharply only those jobs weigh more that would be last."""
    age: float = 0.18
    """AGE: what the oldest job weighs more."""
    old: float = 2.0
    """OLD: how sharply only the oldest do."""
    horizon_s: float = 24.0
    """The horizon over which a change of a running job must pay, once it has run its lease."""
    lease: float = 1300.0
    """Seconds a job should run between changes, for a restart of one second; grows with the root of the restart."""
    eviction: float = 2.0
    """What stopping a running job costs, in restarts."""
    idle_horizon_s: float = 120.0
    """The horizon over which growing into workers that nobody else wants must pay."""
    overhead: float = 1.5
    """How much longer all work takes the whole cluster than it would with perfect speed-ups."""
    few: float = 0.2
    """Jobs a worker below which there are few: then the knob turns towards the makespan by itself."""
    patience: float = 20.0
    """After waiting so many times its own least time (an hour more), a job's worth has grown by one."""


class Dovetail:
    """Exact allocation of a value that weighs short, old and critical jobs, and counts restarts."""

    def __init__(self, knob: float = DEFAULT_KNOB, tuning: Tuning | None = None) -> None:
        """Set the knob: 0 = mean completion time, 1 = makespan."""
        self.knob = knob
        self.tuning = tuning or Tuning()

    def decide(self, view: ClusterView, now_s: float) -> Allocation:
        """Return the allocation of greatest value, then let running jobs grow into what is left."""
        rows = view.rows
        base, fastest = job_speeds(rows, view.speed, view.capacity)
        worth = job_worth(
            rows, view.left, base, fastest, view.restart_s, view.submit_s, view.stopped_s, view.workers, view.weight,
            int(view.capacity.sum()), now_s, self.knob, self.tuning,
        )  # fmt: skip
        first, types, workers, values = option_values(
            rows, view.speed, view.left, base, worth, view.restart_s, view.started_s, view.type, view.workers,
            view.capacity, view.node_workers, now_s, self.tuning,
        )  # fmt: skip
        options = Options(first=first, types=types, workers=workers, values=values)
        chosen = best_choice(options, view.capacity)
        given = np.flatnonzero(chosen >= 0)
        found = Allocation(rows=rows[given], types=types[chosen[given]], workers=workers[chosen[given]])
        return self._grow(view, now_s, found, base[given], worth[given])

    def _grow(
        self, view: ClusterView, now_s: float, found: Allocation, base: FloatArray, worth: FloatArray
    ) -> Allocation:
        """Give workers that are left over to those who gain most by them: more of their type, or a better type."""
        room = view.capacity.copy()
        np.subtract.at(room, found.types, found.workers)
        if room.sum() == 0 or not len(found.rows):
            return found
        first, types, workers, extra, values = growth_values(
            found.rows, found.types, found.workers, view.speed, view.left, base, worth, view.restart_s,
            view.started_s, view.type, view.workers, room, view.node_workers, now_s, self.tuning,
        )  # fmt: skip
        chosen = best_choice(Options(first=first, types=types, workers=extra, values=values), room)
        grown = np.flatnonzero(chosen >= 0)
        new_types, new_workers = found.types.copy(), found.workers.copy()
        new_types[grown], new_workers[grown] = types[chosen[grown]], workers[chosen[grown]]
        return Allocation(rows=found.rows, types=new_types, workers=new_workers)


@njit(cache=True, nogil=True)
def job_speeds(rows: IntArray, speed: FloatArray, capacity: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return each job's best speed a worker and its greatest speed."""
    base, fastest = np.full(len(rows), 1e-300), np.full(len(rows), 1e-300)
    for position in range(len(rows)):
        for kind in range(len(capacity)):
            for size in range(1, min(capacity[kind], speed.shape[2] - 1) + 1):
                there = speed[rows[position], kind, size]
                fastest[position] = max(fastest[position], there)
                base[position] = max(base[position], there / size)
    return base, fastest


@njit(cache=True, nogil=True)
def job_worth(
    rows: IntArray,
    left: FloatArray,
    base: FloatArray,
    fastest: FloatArray,
    restart_s: FloatArray,
    submit_s: FloatArray,
    stopped_s: FloatArray,
    held: IntArray,
    weight: FloatArray,
    num_workers: int,
    now_s: float,
    knob: float,
    tuning: Tuning,
) -> FloatArray:
    """Return u_j: what a second's work on each job is worth."""
    count = len(rows)
    on_one_s = left[rows] / base + restart_s[rows]
    least_s = left[rows] / fastest + restart_s[rows]
    due_s = now_s - submit_s[rows] + least_s
    drain_s = max(least_s.max(), tuning.overhead * on_one_s.sum() / num_workers)
    latest_s = due_s.max()
    worth = np.empty(count)
    short_first = (1.0 - tuning.full * knob) * min(1.0, count / (tuning.few * num_workers))
    shortest_first = np.argsort(on_one_s, kind="mergesort")
    for place in range(count):
        position = shortest_first[place]
        row = rows[position]
        waited = 0.0
        if held[row] == 0:
            waited = (now_s - stopped_s[row]) / (tuning.patience * (least_s[position] + 3600.0))
        worth[position] = weight[row] * (
            short_first * ((count - place) / count) ** tuning.rank
            + (1.0 - short_first) * (least_s[position] / drain_s) ** tuning.long
            + tuning.age * (due_s[position] / latest_s) ** tuning.old
            + waited
        )
    return worth


@njit(cache=True, nogil=True)
def lease_run(ran_s: float, restart_s: float, lease: float) -> float:
    """Return which share of its lease a job has run since its last start; a lease grows with the root of a restart."""
    return min(1.0, (ran_s + 1e-9) / (lease * math.sqrt(restart_s) + 1e-9))


@njit(cache=True, nogil=True)
def is_sensible(size: int, node_workers: int, least: int, most: int) -> bool:
    """Say whether a size is a power of two, a number of whole nodes, or the least or the most a job may use."""
    return size & (size - 1) == 0 or size % node_workers == 0 or size in (least, most)


@njit(cache=True, nogil=True)
def size_limits(speed: FloatArray, row: int, kind: int, capacity: int) -> tuple[int, int]:
    """Return the least and the most workers a job may use of a type, both 0 where it cannot."""
    least, most = 0, 0
    for size in range(1, min(capacity, speed.shape[2] - 1) + 1):
        if speed[row, kind, size] > 0.0:
            least = least if least > 0 else size
            most = size
    return least, most


@njit(cache=True, nogil=True)
def option_values(
    rows: IntArray,
    speed: FloatArray,
    left: FloatArray,
    base: FloatArray,
    worth: FloatArray,
    restart_s: FloatArray,
    started_s: FloatArray,
    held_type: IntArray,
    held: IntArray,
    capacity: IntArray,
    node_workers: IntArray,
    now_s: float,
    tuning: Tuning,
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return every sensible option with its value; one worth no more than a smaller of its type is left out."""
    room = len(rows) * len(capacity) * speed.shape[2]
    first = np.zeros(len(rows) + 1, np.int64)
    types, workers, values = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
    count = 0
    for position in range(len(rows)):
        row, restart = rows[position], restart_s[rows[position]]
        runs = held[row] > 0
        bonus, horizon_s = 0.0, 0.0
        if runs:
            horizon_s = tuning.horizon_s * lease_run(now_s - started_s[row], restart, tuning.lease)
            bonus = tuning.eviction * worth[position] * restart / (tuning.horizon_s + restart)
        for kind in range(len(capacity)):
            least, most = size_limits(speed, row, kind, capacity[kind])
            best = -1.0
            for size in range(max(least, 1), most + 1):
                there = speed[row, kind, size]
                keeps = held[row] == size and held_type[row] == kind
                if there <= 0.0 or not (keeps or is_sensible(size, node_workers[kind], least, most)):
                    continue
                value = worth[position] * there / base[position]
                if not keeps:
                    runs_s = left[row] / there
                    ahead_s = min(horizon_s, runs_s) if runs else runs_s
                    value *= (ahead_s + 1e-9) / (ahead_s + restart + 1e-9)
                if value > best:
                    best = value
                    types[count], workers[count], values[count] = kind, size, value + bonus
                    count += 1
        first[position + 1] = count
    return first, types[:count], workers[:count], values[:count]


@njit(cache=True, nogil=True)
def growth_values(
    rows: IntArray,
    types: IntArray,
    sizes: IntArray,
    speed: FloatArray,
    left: FloatArray,
    base: FloatArray,
    worth: FloatArray,
    restart_s: FloatArray,
    started_s: FloatArray,
    held_type: IntArray,
    held: IntArray,
    room: IntArray,
    node_workers: IntArray,
    now_s: float,
    tuning: Tuning,
) -> tuple[IntArray, IntArray, IntArray, IntArray, FloatArray]:
    """Return what each job could have within `room`: type, workers, workers taken from the room, and the gain.

    A job that goes on as it is must gain more over the idle horizon than its restart costs.
    """
    space = len(rows) * len(room) * speed.shape[2]
    first = np.zeros(len(rows) + 1, np.int64)
    kinds, workers = np.empty(space, np.int64), np.empty(space, np.int64)
    extra, values = np.empty(space, np.int64), np.empty(space)
    count = 0
    for position in range(len(rows)):
        row, now = rows[position], sizes[position]
        keeps = held[row] == now and held_type[row] == types[position]
        ran = lease_run(now_s - started_s[row], restart_s[row], tuning.lease) if keeps else 1.0
        for kind in range(len(room)):
            own = now if kind == types[position] else 0
            least, most = size_limits(speed, row, kind, own + room[kind])
            best = 0.0
            for size in range(max(least, own + 1), most + 1):
                there = speed[row, kind, size]
                if there <= 0.0 or not is_sensible(size, node_workers[kind], least, most):
                    continue
                share = 1.0
                if keeps:
                    ahead_s = min(tuning.idle_horizon_s * ran, left[row] / there)
                    share = (ahead_s + 1e-9) / (ahead_s + restart_s[row] + 1e-9)
                gain = worth[position] * (there * share - speed[row, types[position], now]) / base[position]
                if gain > best:
                    best = gain
                    kinds[count], workers[count], extra[count], values[count] = kind, size, size - own, gain
                    count += 1
        first[position + 1] = count
    return first, kinds[:count], workers[:count], extra[:count], values[:count]
