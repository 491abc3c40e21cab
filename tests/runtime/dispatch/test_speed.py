"""Fitting a worker's speed: steady under noise, deaf to one outlier, quick to follow a change."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime.dispatch import WorkerSpeed, first_guess


def seen(*tasks):
    """Return a speed after tasks of (samples, compute_s, fixed_s)."""
    speed = WorkerSpeed()
    for task in tasks:
        speed.add(*task)
    return speed


def test_nothing_is_known_before_the_first_task():
    speed = WorkerSpeed()

    assert not speed.known
    assert (speed.samples_per_s, speed.seconds(100), speed.num_tasks) == (None, None, 0)


def test_one_task_gives_fixed_cost_and_slope():
    speed = seen((100, 2.0, 0.5))

    assert speed.known
    assert (speed.samples_per_s, speed.fixed_s, speed.num_tasks) == (50.0, 0.5, 1)
    assert speed.seconds(200) == pytest.approx(0.5 + 200 / 50)
    assert speed.seconds(0) == 0.0


def test_one_slow_task_changes_nothing():
    speed = seen(*[(100, 1.0, 0.1)] * 5, (100, 10.0, 3.0), (100, 1.0, 0.1))

    assert speed.samples_per_s == pytest.approx(100)
    assert speed.fixed_s == pytest.approx(0.1)


@pytest.mark.parametrize("factor", [0.125, 0.5, 0.8, 1.25, 2, 8])
def test_two_tasks_are_enough_to_follow_a_change(factor):
    speed = seen(*[(100, 1.0, 0.1)] * 10, *[(100, 1.0 / factor, 0.1)] * 2)

    assert speed.samples_per_s == pytest.approx(100 * factor)


def test_a_change_under_noise_is_followed_within_three_tasks():
    noise = random.Random(0)
    for _ in range(200):
        speed = WorkerSpeed()
        for rate in [100.0] * 10 + [50.0] * 3:
            speed.add(100, 100 / rate * noise.uniform(0.9, 1.1), 0.1)
        assert 50 * 0.85 < speed.samples_per_s < 50 * 1.15


def test_after_one_slow_task_less_is_sure():
    speed = seen(*[(100, 1.0, 0.1)] * 5)
    assert speed.sure_samples_per_s == speed.samples_per_s

    speed.add(100, 4.0, 0.1)
    assert speed.samples_per_s == pytest.approx(100)
    assert speed.sure_samples_per_s == pytest.approx(25)


def test_one_fast_task_is_nothing_to_be_sure_of():
    speed = seen(*[(100, 1.0, 0.1)] * 5, (100, 0.25, 0.1))

    assert speed.sure_samples_per_s == speed.samples_per_s == pytest.approx(100)


def test_noise_is_averaged_out():
    noise = random.Random(1)
    off = []
    for _ in range(100):
        speed = seen(*[(1000, 10 * noise.uniform(0.9, 1.1), 0.1) for _ in range(20)])
        off.append(abs(speed.samples_per_s / 100 - 1))

    # One task alone is off by 5% on average.
    assert sum(off) / len(off) < 0.03


def test_the_error_is_how_far_predictions_are_off():
    noise = random.Random(2)
    quiet = seen(*[(1000, 10.0, 0.1)] * 40)
    loud = seen(*[(1000, 10 * noise.uniform(0.8, 1.2), 0.1) for _ in range(40)])

    assert quiet.error < 0.001
    assert 0.05 < loud.error < 0.2  # uniform within 20%: 10% on average


def test_small_pieces_count_together():
    speed = seen((1000, 10.0, 0.5))
    for _ in range(5):
        speed.add(20, 0.4, 0.01, piece=True)  # at half the speed, but less than a quarter of 1000 samples and 10 s

    assert speed.samples_per_s == pytest.approx(100)

    speed.add(1000, 10.0, 0.5)
    # 1100 samples in 12 s, 40% of the way to the median of that and 100.
    assert speed.samples_per_s == pytest.approx(100 + 0.4 * ((100 + 1100 / 12) / 2 - 100))


def test_many_slow_pieces_are_followed_like_a_task():
    speed = seen((1000, 10.0, 0.5))
    for _ in range(12):
        speed.add(20, 0.8, 0.01, piece=True)  # 25 samples/s; every 3.2 s are more than a quarter of a task

    assert speed.samples_per_s == pytest.approx(25)


def test_pieces_have_their_own_fixed_cost():
    speed = seen((1000, 10.0, 0.5))
    speed.add(20, 0.2, 0.01, piece=True)

    assert (speed.fixed_s, speed.piece_fixed_s) == (0.5, 0.01)


def test_the_cost_of_pieces_fades_until_one_is_tried_again():
    speed = seen(*[(1000, 10.0, 0.5)] * 30)
    assert speed.piece_fixed_s == pytest.approx(0.5 * 0.99**30)

    speed.add(20, 0.2, 0.4, piece=True)
    assert speed.piece_fixed_s == 0.4


def test_a_worker_that_gets_only_pieces_is_known_too():
    speed = WorkerSpeed()
    speed.add(10, 0.1, 0.02, piece=True)

    assert speed.known
    assert (speed.samples_per_s, speed.fixed_s) == (pytest.approx(100), 0.02)


def test_tasks_without_samples_or_with_impossible_times_say_nothing():
    assert not seen((0, 0.0, 0.1), (10, 0.0, 0.1), (10, math.nan, 0.1), (10, 1.0, -1.0), (10, 1.0, math.inf)).known


def test_a_first_guess_is_the_median_speed_of_a_core():
    known = [(seen((100, 1.0, 0.0)), 1.0), (seen((600, 1.0, 0.0)), 2.0), (seen((200, 1.0, 0.0)), 1.0)]

    # 100, 300 and 200 a core.
    assert first_guess(4.0, known) == pytest.approx(800)
    assert first_guess(4.0, [(WorkerSpeed(), 1.0)]) is None


def test_a_share_has_the_guess_until_the_speed_is_known():
    speed = WorkerSpeed()
    assert speed.share("a", first_guess=7.0).samples_per_s == 7.0

    speed.add(100, 1.0, 0.5)
    share = speed.share("a", most_samples=9, pinned=0.5, first_guess=7.0)
    assert (share.samples_per_s, share.fixed_s, share.most_samples, share.share) == (100.0, 0.5, 9, 0.5)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e4), st.floats(0, 1e3), st.booleans()), max_size=30))
def test_the_fit_stays_within_what_was_seen(tasks):
    speed, rates = WorkerSpeed(), []
    for samples, compute_s, fixed_s, piece in tasks:
        speed.add(samples, compute_s, fixed_s, piece=piece)
        if samples and compute_s >= 1e-9:
            rates.append(samples / compute_s)

    if speed.known:
        assert min(rates) * (1 - 1e-9) <= speed.samples_per_s <= max(rates) * (1 + 1e-9)
        assert 0 <= speed.fixed_s <= 1e3
