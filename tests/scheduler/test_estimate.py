"""Estimates against what they are estimates of."""

import numpy as np
import pytest

from dovetail.scheduler.estimate.history import SizeHistory
from dovetail.scheduler.estimate.loss_curve import fit_loss
from dovetail.scheduler.estimate.speed_fit import fit_speed, prior_speed


def losses(works, *, noise=0.0, seed=0):
    exact = 1 / (0.01 * works + 0.4) + 0.2
    return exact * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(works)))


def test_an_exact_curve_is_found_from_its_first_quarter():
    works = np.linspace(0, 250, 12)
    target = 1 / (0.01 * 1000 + 0.4) + 0.2

    fit = fit_loss(works, losses(works), target=target)

    assert fit is not None
    assert fit.total_work == pytest.approx(1000, rel=0.02)
    assert (fit.c0, fit.c1, fit.c2) == pytest.approx((0.01, 0.4, 0.2), rel=0.05)


def test_the_error_bar_shrinks_as_the_curve_grows():
    works = np.linspace(0, 1000, 61)
    noisy = losses(works, noise=0.01)
    target = 1 / 10.4 + 0.2
    fits = {count: fit_loss(works[:count], noisy[:count], target=target) for count in (10, 60)}

    assert all(fit is not None for fit in fits.values())
    assert fits[60].error < fits[10].error
    assert fits[60].total_work == pytest.approx(1000, rel=0.1)


def test_a_few_points_and_a_flat_loss_say_nothing():
    assert fit_loss(np.arange(4.0), losses(np.arange(4.0)), target=0.3) is None
    assert fit_loss(np.arange(10.0), np.full(10, 1.0), target=0.3) is None


def truth(workers):
    """Return f(w) = 1 / (t0 m/w + t1 (w - 1) + t2 (w - 1) n/w + t3)."""
    return 1 / (1.0 / workers + 0.01 * (workers - 1) + 0.05 * (workers - 1) / workers + 0.05)


def test_four_measured_sizes_tell_the_others():
    speeds, error = fit_speed({size: truth(size) for size in (1, 2, 4, 8)}, max_workers=12)

    assert speeds[0] == 0.0
    assert [speeds[size] for size in (3, 6, 12)] == pytest.approx([truth(size) for size in (3, 6, 12)], rel=0.05)
    assert error < 0.1


def test_a_measured_size_stands_whatever_the_fit_says():
    speeds, _ = fit_speed({4: 3.4, 6: 3.0}, max_workers=8)

    assert speeds[4] == pytest.approx(3.4)
    assert speeds[6] == pytest.approx(3.0)


def test_one_point_scales_the_prior_and_says_that_it_is_unsure():
    speeds, error = fit_speed({1: 5.0}, max_workers=8)
    _, surer = fit_speed({1: 5.0, 2: 9.0, 8: 30.0}, max_workers=8)

    assert speeds[8] == pytest.approx(5.0 * prior_speed(np.array([8.0]))[0], rel=0.1)
    assert error > 2 * surer


def test_what_is_left_is_that_of_the_finished_jobs_that_were_longer():
    history = SizeHistory()
    for size_s in (10.0, 100.0, 200.0, 300.0):
        history.add("a", size_s)

    assert history.expected_left_s("a", 0.0) == pytest.approx(152.5)
    assert history.expected_left_s("a", 50.0) == pytest.approx(150.0)
    assert history.expected_left_s("b", 50.0) == pytest.approx(150.0)
    assert history.expected_left_s("a", 250.0) == 250.0  # too few were longer: as much again
    assert SizeHistory().expected_left_s("a", 0.0) == 3600.0
