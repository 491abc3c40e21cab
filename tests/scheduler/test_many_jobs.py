"""What is fast with many jobs decides as the plain way does: each is held against a slow one that does all the work."""

import numpy as np
import pytest

from dovetail.scheduler.allocate.bound import HALVINGS, SWEEPS, clear
from dovetail.scheduler.baselines.growing import grow_while_it_saves
from dovetail.scheduler.estimate.watching import Watching
from dovetail.scheduler.job_table import job_table
from dovetail.simulator.traces.make import make_workload
from tests.scheduler.test_allocate import drawn_options


def asked(options, jobs, prices, kind):
    """Return how many workers of a type are in the jobs' best options, asking all of them."""
    total = 0
    for job in jobs:
        best, best_value = -1, 0.0
        for option in range(options.first[job], options.first[job + 1]):
            value = options.values[option] - prices[options.types[option]] * options.workers[option]
            if value > best_value:
                best, best_value = option, value
        if best >= 0 and options.types[best] == kind:
            total += options.workers[best]
    return total


def cleared(options, jobs, capacity):
    """Return the prices that bisection finds where every job is asked at every price."""
    prices = np.zeros(len(capacity))
    for _ in range(SWEEPS):
        for kind in range(len(prices)):
            low, high = 0.0, max(2.0 * prices[kind], 1e-12)
            prices[kind] = 0.0
            if asked(options, jobs, prices, kind) <= capacity[kind]:
                continue
            prices[kind] = high
            while asked(options, jobs, prices, kind) > capacity[kind]:
                low, high = high, 2.0 * high
                prices[kind] = high
            for _ in range(HALVINGS):
                prices[kind] = (low + high) / 2.0
                if asked(options, jobs, prices, kind) > capacity[kind]:
                    low = prices[kind]
                else:
                    high = prices[kind]
            prices[kind] = high
    return prices


@pytest.mark.parametrize("seed", range(12))
def test_prices_are_those_of_asking_every_job_every_time(seed):
    draw = np.random.default_rng(seed)
    num_types = 1 + seed % 3
    options = drawn_options(seed, num_jobs=25, num_types=num_types, max_workers=5)
    capacity = draw.integers(0, 60, num_types)
    jobs = np.sort(draw.permutation(25)[: draw.integers(1, 26)])
    prices = np.zeros(num_types)

    clear(jobs, options.first, options.types, options.workers, options.values, capacity, prices)

    assert prices.tolist() == cleared(options, jobs, capacity).tolist()


def saving(row, kind, workers, speed, left, doubling):
    step = workers if doubling else 1
    if workers == 0 or workers + step >= speed.shape[2] or speed[row, kind, workers + step] <= 0.0:
        return 0.0
    return (left[row] / speed[row, kind, workers] - left[row] / speed[row, kind, workers + step]) / step


def grown(types, workers, speed, left, room, doubling):
    """Return the sizes that come of looking at every job for every step."""
    workers, room = workers.copy(), room.copy()
    while True:
        best, best_gain = -1, 0.0
        for position in range(len(workers)):
            gain = saving(position, types[position], workers[position], speed, left, doubling)
            step = workers[position] if doubling else 1
            if gain > best_gain and step <= room[types[position]]:
                best, best_gain = position, gain
        if best < 0:
            return workers, room
        step = workers[best] if doubling else 1
        room[types[best]] -= step
        workers[best] += step


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_growth_is_that_of_looking_at_every_job_for_every_step(seed, doubling):
    draw = np.random.default_rng(seed)
    count = 30
    speed = np.sort(draw.choice([1.0, 1.5, 2.0, 3.0, 4.5], (count, 2, 17)), axis=2)  # with equals among the gains
    speed[:, :, 0] = 0.0
    left = draw.choice([10.0, 20.0, 40.0], count)
    types, workers = draw.integers(0, 2, count), draw.integers(0, 3, count)
    room = draw.integers(5, 60, 2)
    expected, expected_room = grown(types, workers, speed, left, room, doubling)

    grow_while_it_saves(np.arange(count), types, workers, speed, left, room, doubling)

    assert workers.tolist() == expected.tolist()
    assert room.tolist() == expected_room.tolist()


class PlainWatching(Watching):
    """Works out a kind's speeds again whenever any job of it is seen for the first time."""

    def estimate_left(self, row, done, *, waits=False):
        if row not in self._there:
            self._guess(self._kind_of[row])
        super().estimate_left(row, done, waits=waits)

    def measured_kind(self, kind, type_, size, speed):
        super().measured_kind(kind, type_, size, speed)
        for there in {self._kind_of[row] for row in self._there}:
            self._guess(there)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_believed_of_jobs_is_what_working_it_out_each_time_gives(seed):
    draw = np.random.default_rng(seed)
    table = job_table(make_workload(num_jobs=40, seed=seed, with_loss=False))
    watched = (Watching(table), PlainWatching(table))
    there: list[int] = []
    for row in range(40):
        there.append(row)
        gone = there.pop(int(draw.integers(len(there)))) if draw.random() < 0.4 and len(there) > 1 else None
        size, speed, done = int(draw.integers(1, 9)), float(draw.uniform(1, 50)), float(draw.uniform(0, 100))
        for each in watched:
            each.estimate_left(row, done)
            if row % 3 == 0:
                each.measured(row, 0, size, speed)
            if gone is not None:
                each.finished(gone, 1000.0)
            for other in there:
                each.estimate_left(other, done)

        assert np.array_equal(watched[0].speed, watched[1].speed)
        assert np.array_equal(watched[0].left, watched[1].left)
        assert np.array_equal(watched[0].speed_error, watched[1].speed_error)
