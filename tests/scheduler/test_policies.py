"""Each policy on cases small enough to work out by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.scheduler.default.policy import Dovetail
from dovetail.scheduler.registry import POLICIES, make_policy
from tests.scheduler.makers import CURVE, kinds_of, make_view, sizes

STALLS = {1: 1.0, 2: 1.9, 3: 1.8, 4: 3.4}
"""Three workers are slower than two, four much faster."""


def decide(name, view, now_s=0.0):
    return make_policy(name).decide(view, now_s)


def test_fixed_sizes_start_in_order_until_one_does_not_fit():
    view = make_view([CURVE] * 3, capacity=(10,))

    assert sizes(decide("fixed-4", view), 3) == [4, 4, 0]
    assert sizes(decide("fixed-8", view), 3) == [8, 0, 0]


def test_a_fixed_size_above_what_a_job_may_use_becomes_its_most():
    assert sizes(decide("fixed-8", make_view([{1: 1.0, 2: 1.5}])), 1) == [2]


def test_first_in_first_out_keeps_what_runs_and_lets_nobody_overtake():
    view = make_view([CURVE, CURVE, {1: 1.0}], capacity=(8,), held=[(0, 4), None, None])

    assert sizes(decide("fifo", view), 3) == [4, 0, 0]


def test_srtf_serves_the_shortest_with_as_many_workers_as_pay():
    view = make_view([CURVE, STALLS], capacity=(8,), left=[100.0, 10.0])

    assert sizes(decide("srtf", view), 2) == [4, 4]


def test_las_puts_those_who_had_little_first():
    view = make_view([{1: 1.0}] * 3, capacity=(2,), attained=[5000.0, 0.0, 100.0])

    assert sizes(decide("las", view), 3) == [0, 1, 1]


def test_doubling_gives_the_workers_to_the_job_that_saves_most_a_worker():
    # Both start with 1. Doubling saves Q (1 - 1/1.9): the long job wins, twice (at 4: 200 (1/1.9 - 1/3.4) / 2 = 23 a
    # worker against 47.4 for the short one's first doubling), then the short one.
    view = make_view([CURVE, CURVE], capacity=(6,), left=[200.0, 100.0])

    assert sizes(decide("doubling", view), 2) == [4, 2]


def test_doubling_queues_those_without_a_seat_in_order_of_submission():
    assert sizes(decide("doubling", make_view([CURVE] * 5, capacity=(3,))), 5) == [1, 1, 1, 0, 0]


def test_one_at_a_time_stalls_where_doubling_does_not():
    view = make_view([STALLS], capacity=(4,))

    assert sizes(decide("optimus", view), 1) == [2]
    assert sizes(decide("doubling", view), 1) == [4]


def test_a_policy_never_uses_more_workers_than_pay():
    slower_on_six = {1: 1.0, 2: 1.9, 4: 3.4, 6: 3.0}
    for name in POLICIES:
        if not name.startswith(("fixed", "max-min", "exploratory")):
            assert sizes(decide(name, make_view([slower_on_six])), 1) == [4], name


def test_exploring_tries_each_size_before_it_doubles():
    policy = make_policy("exploratory")
    tried = []
    held, now_s = None, 0.0
    for _ in range(5):
        view = make_view([CURVE], held=[held], started_s=[now_s - 161.0])
        size = sizes(policy.decide(view, now_s), 1)[0]
        tried.append(size)
        held, now_s = (0, size), now_s + 1.0

    assert tried == [1, 2, 4, 8, 8]


def test_exploring_stays_on_a_size_until_it_is_measured():
    policy = make_policy("exploratory")
    view = make_view([CURVE], held=[(0, 1)], started_s=[0.0])

    assert sizes(policy.decide(view, 159.0), 1) == [1]
    assert sizes(policy.decide(view, 160.0), 1) == [2]


def least_sum_of_times(curves, left, capacity):
    """Return the least sum of remaining times over every way to size all jobs."""
    tables = [[(size, q / speed) for size, speed in curve.items()] for curve, q in zip(curves, left, strict=True)]
    return min(
        sum(time for _, time in combination)
        for combination in itertools.product(*tables)
        if sum(size for size, _ in combination) <= capacity
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_equals_brute_force(data):
    count = data.draw(st.integers(1, 4))
    speeds = st.lists(st.floats(0.5, 10.0), min_size=1, max_size=5)
    curves = [dict(enumerate(data.draw(speeds), start=1)) for _ in range(count)]
    left = data.draw(st.lists(st.floats(1.0, 1000.0), min_size=count, max_size=count))
    capacity = data.draw(st.integers(count, 8))
    view = make_view(curves, capacity=(capacity,), left=left)

    found = decide("exact", view)

    total = sum(
        left[row] / curves[row][workers]
        for row, workers in zip(found.rows.tolist(), found.workers.tolist(), strict=True)
    )
    assert total == pytest.approx(least_sum_of_times(curves, left, capacity))


def test_doubling_is_within_a_few_percent_of_exact_on_static_mixes():
    draw = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        curves = [
            {w: 1.0 / (serial + (1 - serial) / w) for w in range(1, 17)} for serial in draw.uniform(0.01, 0.2, 12)
        ]
        left = draw.lognormal(5.0, 1.0, 12)
        view = make_view(curves, capacity=(64,), left=left)
        sums = {}
        for name in ("doubling", "exact"):
            found = decide(name, view)
            sums[name] = (left[found.rows] / view.speed[found.rows, 0, found.workers]).sum()
        ratios.append(sums["doubling"] / sums["exact"])

    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.05


def test_max_min_gives_the_only_type_a_job_can_use_to_that_job():
    # Job 0 can use both types, job 1 the first only.
    view = make_view([[{1: 1.0}, {1: 1.0}], [{1: 1.0}, {}]], capacity=(1, 1))

    assert kinds_of(decide("max-min", view)) == {0: 1, 1: 0}


def test_max_min_lets_jobs_take_turns():
    policy = make_policy("max-min")
    served = []
    held: list[tuple[int, int] | None] = [None, None]
    for turn in range(6):
        found = policy.decide(make_view([{1: 1.0}] * 2, capacity=(1,), held=held), 360.0 * turn)
        served.append(int(found.rows[0]))
        held = [(0, 1) if row == served[-1] else None for row in range(2)]

    assert served.count(0) == served.count(1) == 3


def test_goodput_uses_the_batch_that_pays():
    view = make_view([CURVE])
    larger = view.speed * 1.5
    view = type(view)(**{name: getattr(view, name) for name in view.__slots__} | {"batch_speed": (larger,)})

    found = decide("goodput", view)

    assert found.batches is not None
    assert found.batches.tolist() == [0]


def test_dovetail_gives_each_job_the_type_it_is_best_on():
    on_first, on_second = [{1: 1.0}, {1: 0.2}], [{1: 1.0}, {1: 0.9}]

    assert kinds_of(decide("dovetail", make_view([on_first, on_second], capacity=(1, 1)))) == {0: 0, 1: 1}


def test_dovetail_runs_the_short_job_when_there_is_room_for_one():
    view = make_view([{1: 1.0}, {1: 1.0}], capacity=(1,), left=[10_000.0, 100.0])

    assert sizes(Dovetail(knob=0.0).decide(view, 0.0), 2) == [0, 1]


def test_dovetail_does_not_stop_a_job_whose_restart_costs_more_than_it_gains():
    for restart_s, expected in ((0.0, [0, 1]), (500.0, [1, 0])):
        view = make_view(
            [{1: 1.0}] * 2, capacity=(1,), held=[(0, 1), None], left=[1000.0, 200.0], restart_s=[restart_s] * 2
        )
        assert sizes(Dovetail(knob=0.0).decide(view, 0.0), 2) == expected


def test_the_knob_turns_from_short_jobs_to_the_critical_one():
    # On two workers the long job must start now for everything to be done in 10,000 s.
    view = make_view([{1: 1.0}] * 3, capacity=(2,), left=[10_000.0, 5_000.0, 5_000.0])

    assert sizes(Dovetail(knob=0.0).decide(view, 0.0), 3) == [0, 1, 1]
    assert sizes(Dovetail(knob=1.0).decide(view, 0.0), 3)[0] == 1


def test_a_misspelt_policy_is_told_the_nearest():
    with pytest.raises(DovetailError, match="dubling") as error:
        make_policy("dubling")

    assert error.value.hint == "did you mean `doubling`?"
