"""Main tasks, the tail, and who takes a piece of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.runtime.dispatch import WorkerShare, grant, plan_step, seconds_left, split, tail_part
from tests.runtime.dispatch.test_split import teams, workers

FAST = WorkerShare(name="fast", samples_per_s=1000.0, piece_fixed_s=0.001)
SLOW = WorkerShare(name="slow", samples_per_s=100.0, piece_fixed_s=0.001)


@pytest.mark.parametrize("remaining", [1, 10, 16, 18, 40])
@pytest.mark.parametrize("others_s", [[], [0.0], [0.005, 0.02]])
def test_whoever_is_left_to_take_the_tail_is_never_refused(remaining, others_s):
    doubted = WorkerShare(name="a", samples_per_s=1000.0, sure_samples_per_s=840.0, piece_fixed_s=0.001)
    closed = [(WorkerShare(name="b", samples_per_s=1000.0, share=0.0), busy_s) for busy_s in others_s]
    while remaining:
        taken = grant(doubted, remaining, closed, step_s=1.0, busy_s=0.01)
        assert taken > 0
        remaining -= taken


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


def test_gradients_on_their_way_count_until_servers_have_them():
    free = WorkerShare(name="free", samples_per_s=100.0)
    far = WorkerShare(name="far", samples_per_s=100.0, push_s=2.0)
    assert seconds_left(0, [(free, 3.0), (far, 2.0)]) == 4.0
    # 100 (t - 1) + 100 (t - 0 - 2) = 300: t = 3.
    assert seconds_left(300, [(free, 1.0), (far, 0.0)]) == pytest.approx(3.0)
    # Of 100 samples it takes what it can send until the other is done with all of them after 1.5 s: none.
    assert grant(far, 100, [(free, 0.5)], step_s=1.0) == 0


def test_pinned_workers_are_waited_for_but_take_no_tail():
    pinned = WorkerShare(name="pinned", samples_per_s=1e6, share=0.5)

    assert seconds_left(100, [(pinned, 1.0)]) == math.inf
    assert seconds_left(100, [(pinned, 5.0), (SLOW, 0.0)]) == 5.0
    assert grant(pinned, 100, [(SLOW, 50.0)], step_s=1.0) == 0
    assert grant(pinned, 100, [], step_s=1.0) > 0


def test_a_piece_is_half_of_the_workers_share():
    exact = WorkerShare(name="exact", samples_per_s=1000.0)
    # Both free, equally fast: 250 each of 500.
    assert grant(exact, 500, [(exact, 0.0)], step_s=1.0) == 125
    # The other is free 0.1 s later: 1000 t + 1000 (t - 0.1) = 500.
    assert grant(exact, 500, [(exact, 0.1)], step_s=1.0) == 150
    # The other will be busy for six times as long as this one needs for everything.
    assert grant(exact, 500, [(exact, 3.0)], step_s=1.0) == 500


def test_the_longer_a_worker_is_still_busy_the_less_it_takes():
    taken = [grant(FAST, 500, [(FAST, 0.1)], step_s=1.0, busy_s=busy_s) for busy_s in (0.0, 0.05, 0.1, 0.3, 0.6)]

    assert taken == sorted(taken, reverse=True)
    assert taken[-1] == 0


def test_a_share_that_predictions_miss_by_less_than_a_piece_costs_is_taken_at_once():
    # Off by 4% where nobody says: 4% of 0.25 s are 0.01 s.
    cheap = WorkerShare(name="a", samples_per_s=1000.0, piece_fixed_s=0.009)
    costly = WorkerShare(name="a", samples_per_s=1000.0, piece_fixed_s=0.011)

    assert grant(cheap, 500, [(cheap, 0.0)], step_s=1.0) == 125
    assert grant(costly, 500, [(costly, 0.0)], step_s=1.0) == 250
    noisy = WorkerShare(name="a", samples_per_s=1000.0, piece_fixed_s=0.011, error=0.1)
    assert grant(noisy, 500, [(noisy, 0.0)], step_s=1.0) == 125


def test_a_slow_worker_waits_where_the_others_finish_sooner():
    # The fast one alone needs 0.101 s for 100 samples: the slow one would do 9 in them.
    assert grant(SLOW, 100, [(FAST, 0.0)], step_s=1.0) == 0
    assert grant(SLOW, 100, [(FAST, 0.2)], step_s=1.0) > 0


def test_a_slow_worker_takes_the_last_samples_where_nobody_else_would():
    assert grant(SLOW, 3, [], step_s=0.001) == 3
    assert grant(SLOW, 3, [(WorkerShare(name="p", samples_per_s=1e6, share=0.5), 0.0)], step_s=0.001) == 3


def test_a_piece_fits_into_memory():
    small = WorkerShare(name="a", samples_per_s=1000.0, most_samples=5)

    assert grant(small, 500, [(FAST, 10.0)], step_s=1.0) == 5


def test_nothing_is_granted_of_nothing():
    assert grant(FAST, 0, [], step_s=1.0) == 0


@given(st.integers(0, 100_000), teams, st.one_of(st.none(), st.floats(0, 0.5)))
def test_main_tasks_and_tail_are_the_batch(batch, team, tail):
    plan = plan_step(batch, team, tail=tail)

    assert sum(plan.main.values()) + plan.tail_samples == batch
    assert plan.tail_samples >= 0
    assert min(plan.main.values()) >= 0
    assert plan_step(batch, team, tail=0).main == split(batch, team)


@given(
    teams,
    st.integers(1, 10**6),
    st.lists(st.floats(0, 1e4), min_size=9, max_size=9),
    st.one_of(st.none(), st.floats(0, 1e4)),
)
def test_a_piece_is_part_of_what_remains_and_never_refused_where_nobody_else_is(team, remaining, busy, step_s):
    for worker in team:
        others = [(other, busy_s) for other, busy_s in zip(team, busy, strict=False) if other is not worker]
        piece = grant(worker, remaining, others, step_s=step_s)
        assert 0 <= piece <= remaining
        if piece > 16 and worker.samples_per_s is not None and others:
            until_s = seconds_left(remaining, [*others, (worker, 0.0)])
            assert piece / worker.samples_per_s + worker.fixed_s <= until_s * (1 + 1e-6)
        assert 1 <= grant(worker, remaining, [], step_s=step_s) <= remaining
