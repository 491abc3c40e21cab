"""Cutting a batch: sums, limits, pins, and the optimum found by trying every split."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime.dispatch import WorkerShare, split
from dovetail.runtime.errors import TrainingError


def workers(*rates, **settings):
    """Return workers a, b, ... with these speeds; a setting is a list, one a worker."""
    return [
        WorkerShare(name=chr(97 + i), samples_per_s=rate, **{key: value[i] for key, value in settings.items()})
        for i, rate in enumerate(rates)
    ]


def last_s(amounts, team):
    """Return when the last of the workers is done."""
    return max(w.fixed_s + n / w.samples_per_s if n else 0.0 for n, w in zip(amounts, team, strict=True))


rates = st.one_of(st.none(), st.floats(1e-3, 1e6))
free_workers = st.builds(
    WorkerShare,
    name=st.just(""),
    fixed_s=st.floats(0, 100),
    samples_per_s=rates,
    most_samples=st.one_of(st.none(), st.integers(1, 5000)),
)
teams = st.lists(free_workers, min_size=1, max_size=9).map(
    lambda team: [
        WorkerShare(name=f"w{i}", fixed_s=w.fixed_s, samples_per_s=w.samples_per_s, most_samples=w.most_samples)
        for i, w in enumerate(team)
    ]
)


def test_speeds_of_8_4_2_1_get_shares_of_8_4_2_1():
    assert split(1500, workers(80.0, 40.0, 20.0, 10.0)) == {"a": 800, "b": 400, "c": 200, "d": 100}


def test_a_fixed_cost_is_taken_off_the_share():
    # 100 (t - 0) + 100 (t - 1) = 300: t = 2.
    assert split(300, workers(100.0, 100.0, fixed_s=[0.0, 1.0])) == {"a": 200, "b": 100}


def test_a_worker_whose_fixed_cost_alone_takes_longer_gets_nothing():
    assert split(300, workers(100.0, 100.0, 100.0, fixed_s=[0.0, 1.0, 2.5])) == {"a": 200, "b": 100, "c": 0}


def test_what_does_not_fit_is_handed_to_the_others():
    assert split(160, workers(80.0, 40.0, 40.0, most_samples=[20, None, None])) == {"a": 20, "b": 70, "c": 70}


def test_a_batch_beyond_all_limits_is_taken_in_rounds():
    # 10 + 20 samples fit at once, 90 in three rounds of each.
    assert split(90, workers(100.0, 1.0, most_samples=[10, 20])) == {"a": 30, "b": 60}


def test_the_odd_samples_go_to_the_largest_remainders():
    # 10 / 3 each: the first of equals; and 5.25, 1.75: the 0.75.
    assert split(10, workers(1.0, 1.0, 1.0)) == {"a": 4, "b": 3, "c": 3}
    assert split(7, workers(3.0, 1.0)) == {"a": 5, "b": 2}


def test_unknown_speeds_share_alike_or_as_the_median_of_the_known():
    assert split(90, workers(None, None, None, fixed_s=[0.0, 5.0, 9.0])) == {"a": 30, "b": 30, "c": 30}
    assert split(100, workers(10.0, 20.0, None, 50.0)) == {"a": 10, "b": 20, "c": 20, "d": 50}


def test_pinned_shares_are_fractions_of_the_batch():
    assert split(100, workers(1.0, 3.0, 99.0, share=[None, None, 0.2])) == {"a": 20, "b": 60, "c": 20}


def test_pinned_shares_win_over_limits():
    assert split(100, workers(1.0, 1.0, share=[0.9, None], most_samples=[5, None])) == {"a": 90, "b": 10}


def test_pinned_workers_that_are_left_alone_keep_their_proportions():
    assert split(90, workers(1.0, 1.0, share=[0.2, 0.4])) == {"a": 30, "b": 60}


def test_a_batch_of_nothing_is_nothing_for_everybody():
    assert split(0, workers(1.0, 2.0, share=[None, 0.5])) == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("team", "message"),
    [
        ([], "no worker"),
        (workers(1.0, 1.0, share=[0.7, 0.6]), "sum to 1.3: `a` = 0.7, `b` = 0.6"),
        (workers(1.0, 1.0, share=[-0.1, None]), "`a` = -0.1"),
        (workers(1.0, 1.0, share=[math.nan, None]), "`a` = nan"),
        (workers(1.0, 1.0, 1.0, share=[0.7, 0.3, None]), "leave nothing for `c`"),
        (workers(1.0, share=[0.0]), "no worker takes any"),
        (workers(1.0, 2.0, most_samples=[0, 0]), "not one sample fits into the memory of `a`, `b`"),
    ],
)
def test_workers_that_cannot_take_a_batch_are_refused(team, message):
    with pytest.raises(TrainingError, match=message):
        split(10, team)


@pytest.mark.parametrize("wrong", [{"samples_per_s": 0.0}, {"samples_per_s": math.nan}, {"fixed_s": -1.0}])
def test_numbers_no_worker_has_are_refused(wrong):
    with pytest.raises(TrainingError, match="worker `a` has"):
        WorkerShare(name="a", **wrong)


@given(st.integers(0, 100_000), teams)
def test_parts_sum_to_the_batch_and_obey_the_limits(batch, team):
    parts = split(batch, team)

    assert list(parts) == [worker.name for worker in team]
    assert sum(parts.values()) == batch
    assert all(part >= 0 for part in parts.values())
    most = [batch if worker.most_samples is None else worker.most_samples for worker in team]
    rounds = math.ceil(batch / sum(most)) if batch else 1
    assert all(parts[w.name] <= rounds * limit for w, limit in zip(team, most, strict=True))
    assert split(batch, team) == parts


@given(st.integers(0, 10_000), teams, st.lists(st.floats(0, 0.09), min_size=1, max_size=9))
def test_pins_are_kept_to_within_a_sample(batch, team, shares):
    pins = [WorkerShare(name=f"p{i}", share=share) for i, share in enumerate(shares)]
    parts = split(batch, [*pins, *team])

    assert sum(parts.values()) == batch
    assert min(parts.values()) >= 0
    assert all(abs(parts[pin.name] - batch * pin.share) < 1 + 1e-6 for pin in pins)


@given(
    st.integers(1, 14),
    st.lists(st.tuples(st.floats(0, 4), st.floats(0.2, 8), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_no_split_is_better_by_more_than_rounding(batch, numbers):
    team = [
        WorkerShare(name=f"w{i}", fixed_s=fixed_s, samples_per_s=rate, most_samples=most)
        for i, (fixed_s, rate, most) in enumerate(numbers)
    ]
    if sum(worker.most_samples for worker in team) < batch:
        return
    ranges = [range(min(batch, worker.most_samples) + 1) for worker in team]
    best_s = min(last_s(parts, team) for parts in itertools.product(*ranges) if sum(parts) == batch)
    ours_s = last_s(split(batch, team).values(), team)

    assert ours_s <= best_s + max(1 / worker.samples_per_s for worker in team) + 1e-9
