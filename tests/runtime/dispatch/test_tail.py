"""Main tasks, the tail, and who takes a piece of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime.dispatch import WorkerShare, grant, plan_step, seconds_left, split, tail_part
from tests.runtime.dispatch.test_split import teams, workers

FAST = WorkerShare(name="fast", samples_per_s=1000.0, piece_fixed_s=0.001)
SLOW = WorkerShare(name="slow", samples_per_s=100.0, piece_fixed_s=0.001)


def test_the_tail_is_cut_from_everybody():
    plan = plan_step(1000, workers(3.0, 1.0), tail=0.2)

    assert plan.main == {"a": 600, "b": 200}
    assert plan.tail_samples == 200
    assert plan.step_s == pytest.approx(1000 / 4)


def test_without_any_known_speed_most_of_the_batch_is_tail():
    plan = plan_step(1000, workers(None, None))

    assert plan.main == {"a": 100, "b": 100}
    assert (plan.tail_samples, plan.step_s) == (800, None)


def test_a_single_worker_has_no_tail():
    assert plan_step(100, workers(5.0)).tail_samples == 0


def test_a_tail_of_less_than_a_task_is_none():
    assert plan_step(100, workers(1.0, 1.0), tail=0.1).tail_samples == 0


def test_pinned_workers_take_exactly_their_shares():
    plan = plan_step(1000, workers(1.0, 1.0, 1.0, share=[0.4, None, None]), tail=0.1)

    assert plan.main == {"a": 400, "b": 270, "c": 270}
    assert plan.tail_samples == 60


def test_pins_everywhere_leave_no_tail():
    plan = plan_step(100, workers(1.0, 1.0, share=[0.5, 0.5]))

    assert (plan.main, plan.tail_samples) == ({"a": 50, "b": 50}, 0)


def test_a_worker_in_doubt_takes_what_it_surely_does_and_the_tail_gets_the_rest():
    # The step takes 5 s, 4.5 s before the tail; at 25 samples/s that is 112 samples.
    plan = plan_step(1000, workers(100.0, 100.0, sure_samples_per_s=[100.0, 25.0]), tail=0.1)

    assert plan.main == {"a": 450, "b": 112}
    assert plan.tail_samples == 438


def test_the_tail_grows_with_the_errors_and_shrinks_with_the_cost_of_pieces():
    def part(error, piece_s):
        return tail_part(workers(1.0, 1.0, error=[0.0, error], piece_fixed_s=[piece_s] * 2), step_s=1.0)

    assert part(0.04, 0.0) == pytest.approx(0.06)
    assert part(0.1, 0.0) == pytest.approx(0.15)
    assert part(0.1, 0.02) == pytest.approx(0.15 / 2)
    assert part(0.1, 0.1) == 0.0  # a piece costs as much as it can win
    assert part(0.0, 0.0) == 0.0
    assert part(0.9, 0.0) == 0.3


def test_others_are_done_when_the_last_is_done_and_the_tail_is_shared():
    free = WorkerShare(name="free", samples_per_s=100.0)
    assert seconds_left(0, [(free, 3.0), (free, 1.0)]) == 3.0
    # 100 (t - 1) + 100 (t - 2) = 300: t = 3.
    assert seconds_left(300, [(free, 1.0), (free, 2.0)]) == pytest.approx(3.0)
    # The tail is done after 2 s by one, the other is busy for 9.
    assert seconds_left(100, [(free, 1.0), (free, 9.0)]) == 9.0
    assert seconds_left(100, []) == math.inf


def test_pinned_workers_are_waited_for_but_take_no_tail():
    pinned = WorkerShare(name="pinned", samples_per_s=1e6, share=0.5)

    assert seconds_left(100, [(pinned, 1.0)]) == math.inf
    assert seconds_left(100, [(pinned, 5.0), (SLOW, 0.0)]) == 5.0
    assert grant(pinned, 100, 50.0, step_s=1.0) == 0
    assert grant(pinned, 100, math.inf, step_s=1.0) > 0


def test_a_piece_takes_two_percent_of_the_step():
    assert grant(FAST, 500, 0.05, step_s=1.0) == 20


def test_a_piece_takes_a_quarter_of_the_time_that_is_left():
    assert grant(FAST, 1000, 0.4, step_s=1.0) == 100


def test_a_piece_computes_three_times_as_long_as_it_costs():
    costly = WorkerShare(name="a", samples_per_s=1000.0, piece_fixed_s=0.1)

    assert grant(costly, 1000, 0.5, step_s=1.0) == 300


def test_a_slow_worker_waits_where_the_others_finish_sooner():
    # 16 samples would take it 0.161 s.
    assert grant(SLOW, 100, 0.15, step_s=1.0) == 0
    assert grant(SLOW, 100, 0.17, step_s=1.0) == 16


def test_a_slow_worker_takes_the_last_samples_where_nobody_else_would():
    assert grant(SLOW, 3, math.inf, step_s=0.001) == 3


def test_a_piece_fits_into_memory():
    small = WorkerShare(name="a", samples_per_s=1000.0, most_samples=5)

    assert grant(small, 500, 10.0, step_s=1.0) == 5


def test_nothing_is_granted_of_nothing():
    assert grant(FAST, 0, math.inf, step_s=1.0) == 0


@given(st.integers(0, 100_000), teams, st.one_of(st.none(), st.floats(0, 0.5)))
def test_main_tasks_and_tail_are_the_batch(batch, team, tail):
    plan = plan_step(batch, team, tail=tail)

    assert sum(plan.main.values()) + plan.tail_samples == batch
    assert plan.tail_samples >= 0
    assert min(plan.main.values()) >= 0
    assert plan_step(batch, team, tail=0).main == split(batch, team)


@given(teams, st.integers(1, 10**6), st.floats(0, 1e4), st.one_of(st.none(), st.floats(0, 1e4)))
def test_a_piece_is_part_of_what_remains_and_never_refused_where_nobody_else_is(team, remaining, left_s, step_s):
    for worker in team:
        piece = grant(worker, remaining, left_s, step_s=step_s)
        assert 0 <= piece <= remaining
        if piece and worker.samples_per_s is not None:
            assert piece / worker.samples_per_s + worker.fixed_s <= left_s * (1 + 1e-9)
        assert 1 <= grant(worker, remaining, math.inf, step_s=step_s) <= remaining
