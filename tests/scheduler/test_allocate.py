"""The best choice of options against trying them all."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.scheduler.allocate import JobOptions, best, best_choice
from dovetail.scheduler.allocate.best import solve_milp
from dovetail.scheduler.allocate.bound import price_workers


def drawn_options(seed, *, num_jobs, num_types, max_workers):
    """Return options with concave and bumpy values alike."""
    draw = np.random.default_rng(seed)
    first, types, workers, values = [0], [], [], []
    for _ in range(num_jobs):
        scale = np.exp(draw.normal())
        for kind in range(num_types):
            for size in range(1, max_workers + 1):
                if draw.random() < 0.8:
                    types.append(kind)
                    workers.append(size)
                    values.append(scale * size ** draw.uniform(0.3, 1.0) * draw.uniform(0.8, 1.2))
        first.append(len(types))
    return JobOptions(
        first=np.array(first),
        types=np.array(types, np.int64),
        workers=np.array(workers, np.int64),
        values=np.array(values, float),
    )


def greatest_of_all(options, capacity, *, required=False):
    """Return the greatest sum of values over every combination."""
    greatest = -np.inf
    skip = [] if required else [-1]
    per_job = [[*skip, *range(options.first[j], options.first[j + 1])] for j in range(options.num_jobs)]
    for combination in itertools.product(*per_job):
        chosen = np.array([option for option in combination if option >= 0], np.int64)
        used = np.bincount(options.types[chosen], weights=options.workers[chosen], minlength=len(capacity))
        if (used <= capacity).all():
            greatest = max(greatest, options.values[chosen].sum())
    return greatest


def worth(options, chosen):
    return options.values[chosen[chosen >= 0]].sum()


INSTANCES = st.tuples(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(INSTANCES, st.lists(st.integers(0, 6), min_size=3, max_size=3), st.sampled_from([0, best.TABLE_WORK]))
def test_the_choice_is_the_best_of_all_by_table_and_by_prices(instance, rooms, table_work):
    seed, num_jobs, num_types, max_workers = instance
    options = drawn_options(seed, num_jobs=num_jobs, num_types=num_types, max_workers=max_workers)
    capacity = np.array(rooms[:num_types])
    kept, best.TABLE_WORK = best.TABLE_WORK, table_work
    try:
        chosen = best_choice(options, capacity)
    finally:
        best.TABLE_WORK = kept

    assert worth(options, chosen) == pytest.approx(greatest_of_all(options, capacity))


@settings(max_examples=30, deadline=None)
@given(INSTANCES)
def test_highs_agrees_with_trying_all(instance):
    seed, num_jobs, num_types, max_workers = instance
    options = drawn_options(seed, num_jobs=num_jobs, num_types=num_types, max_workers=max_workers)
    capacity = np.full(num_types, 4)

    chosen = solve_milp(options, capacity, required=False)

    assert worth(options, chosen) == pytest.approx(greatest_of_all(options, capacity))


@settings(max_examples=30, deadline=None)
@given(INSTANCES)
def test_no_allocation_is_worth_more_than_the_priced_bound(instance):
    seed, num_jobs, num_types, max_workers = instance
    options = drawn_options(seed, num_jobs=num_jobs, num_types=num_types, max_workers=max_workers)
    capacity = np.full(num_types, 3)

    bound, _, _, value = price_workers(options.first, options.types, options.workers, options.values, capacity)

    greatest = greatest_of_all(options, capacity)
    assert value <= greatest * (1 + 1e-12) + 1e-12
    assert greatest <= bound * (1 + 1e-12) + 1e-12


def test_large_and_small_clusters_are_solved_alike():
    options = drawn_options(5, num_jobs=60, num_types=3, max_workers=8)
    capacity = np.array([30, 25, 20])

    by_milp = solve_milp(options, capacity, required=False)

    assert worth(options, best_choice(options, capacity)) == pytest.approx(worth(options, by_milp), rel=1e-6)


def test_required_jobs_are_all_served_or_it_says_so():
    options = drawn_options(1, num_jobs=3, num_types=1, max_workers=2)

    assert (best_choice(options, np.array([6]), required=True) >= 0).all()
    with pytest.raises(DovetailError, match="not enough workers"):
        best_choice(options, np.array([2]), required=True)


def test_no_jobs_need_no_choice():
    empty = np.empty(0, np.int64)
    options = JobOptions(first=np.zeros(1, np.int64), types=empty, workers=empty, values=np.empty(0))

    assert len(best_choice(options, np.array([4]))) == 0
