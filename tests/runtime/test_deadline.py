"""Limits on waits."""

import pytest

from dovetail.runtime.clocks import Deadline


def after(durations, **how):
    deadline = Deadline(**how)
    for duration_s in durations:
        deadline.add(duration_s)
    return deadline.limit_s


def test_the_first_waits_have_a_long_limit():
    assert after([]) == 60.0
    assert after([1, 1, 1], first_s=7.0) == 7.0


def test_the_limit_is_the_median_and_some_mads():
    # Median 12; distances 2, 1, 0, 1, 8: their median is 1.
    assert after([10, 11, 12, 13, 20], k=8) == pytest.approx(20.0)


def test_quick_waits_have_the_floor():
    assert after([0.001] * 10) == 2.0


def test_one_wait_of_an_hour_does_not_raise_the_limit():
    assert after([5.0] * 9 + [3600.0]) == pytest.approx(5.0)


def test_only_the_last_64_count():
    assert after([1000.0] * 50 + [4.0] * 64) == pytest.approx(4.0)
