"""Estimates against what they are estimates of."""

import numpy as np
import pytest

from dovetail.scheduler.estimate.loss_curve import fit_loss
from dovetail.scheduler.estimate.speed_fit import Measured, first_prior, fit_speed, learn_prior
from dovetail.scheduler.estimate.watching import SizeHistory


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


def points(speeds):
    return {size: Measured(log_speed=float(np.log(speed)), count=1) for size, speed in speeds.items()}


def fitted(speeds, prior=None, noise=0.03):
    mean, error = fit_speed(points(speeds), prior or first_prior(16), max_workers=16, noise=noise)
    return np.concatenate(([0.0], np.exp(mean))), np.concatenate(([0.0], error))


def test_measured_sizes_stand_within_their_noise_whatever_the_form():
    # Slower on six than on four, and a jump at eight: no formula of rings has that.
    odd = {1: 1.0, 2: 2.0, 4: 2.1, 6: 1.8, 8: 7.9}
    speeds, errors = fitted(odd, noise=0.01)

    assert [speeds[size] for size in odd] == pytest.approx(list(odd.values()), rel=0.02)
    assert max(errors[size] for size in odd) < 0.0101


def test_between_two_sizes_the_curve_goes_from_one_to_the_other():
    speeds, errors = fitted({2: 2.0, 8: 5.0}, noise=1e-6)

    assert 2.0 < speeds[3] < speeds[4] < speeds[6] < 5.0
    assert errors[4] > max(errors[3], errors[6]) > 0.1


def test_one_point_scales_the_drift_and_is_less_sure_the_further_off():
    speeds, errors = fitted({1: 5.0})

    assert speeds[8] == pytest.approx(5.0 / (0.06 + 0.94 / 8), rel=0.01)
    assert errors[2] < errors[4] < errors[16]
    assert errors[2] == pytest.approx((0.09 + 0.03**2) ** 0.5, rel=0.01)  # one doubling of spread, and the noise


def test_what_doubling_does_is_learnt_from_other_kinds():
    # Forty kinds gain a fifth by each doubling: so will one that was seen on one worker only.
    others = [points({1: pace, 2: 1.2 * pace, 4: 1.44 * pace}) for pace in np.linspace(1.0, 9.0, 40)]
    prior = learn_prior(others, max_workers=4, noise=0.03)
    mean, error = fit_speed(points({1: 7.0}), prior, max_workers=4, noise=0.03)

    assert np.exp(mean) == pytest.approx([7.0, 1.2 * 7.0, mean_of(1.2, 1.44) * 7.0, 1.44 * 7.0], rel=0.05)
    assert error[3] < 0.15  # they agree, so it is surer than the first guess would be


def mean_of(low, high):
    """Return where a straight line in log2 of the workers stands at three, between two and four."""
    return low * (high / low) ** (np.log2(3) - 1)


def test_kinds_that_disagree_leave_wide_error_bars():
    others = [points({1: 1.0, 2: gain}) for gain in (0.5, 2.0) * 20]

    assert learn_prior(others, max_workers=2, noise=0.03).spread == pytest.approx(np.log(2.0) ** 2, rel=0.1)


def test_what_is_left_is_that_of_the_finished_jobs_that_were_longer():
    history = SizeHistory()
    for size_s in (10.0, 100.0, 200.0, 300.0):
        history.add("a", size_s)

    assert history.expected_left_s("a", 0.0) == pytest.approx(152.5)
    assert history.expected_left_s("a", 50.0) == pytest.approx(150.0)
    assert history.expected_left_s("b", 50.0) == pytest.approx(150.0)
    assert history.expected_left_s("a", 250.0) == 250.0  # too few were longer: as much again
    assert SizeHistory().expected_left_s("a", 0.0) == 3600.0


def test_a_young_job_counts_as_short_where_most_are():
    # Nine of twelve take 10 s: given up after 10 s each, 120 s of work get nine done. One that has done 10 is long.
    history = SizeHistory()
    for size_s in (10.0,) * 9 + (10_000.0,) * 3:
        history.add("a", size_s)

    assert history.expected_left_s("a", 0.0) == pytest.approx((9 * 10 + 3 * 10) / 9)
    assert history.expected_left_s("a", 10.0) == pytest.approx(9_990.0)


def test_each_one_that_is_tried_in_vain_has_started_too():
    # Of three, two take 10 s. Given up after 10 s, all start and take 3 * (30 + 10) s for two that are done: 60, its
    # own start among them. Without starts it is 30 / 2.
    history = SizeHistory()
    for size_s in (10.0, 10.0, 1000.0):
        history.add("a", size_s)

    assert history.expected_left_s("a", 0.0) == pytest.approx(15.0)
    assert history.expected_left_s("a", 0.0, 30.0) == pytest.approx(60.0 - 30.0)
    # Starts so long that each is better done: 3 starts and 1,020 s for three.
    assert history.expected_left_s("a", 0.0, 10_000.0) == pytest.approx(1020.0 / 3)
