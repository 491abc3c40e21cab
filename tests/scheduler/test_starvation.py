"""Nobody starves: the rule, and the bound it gives, under arrivals that would keep a long job waiting for ever."""

import numpy as np
import pytest

from dovetail.scheduler.default.offers import offers_of
from dovetail.scheduler.default.policy import Dovetail
from dovetail.scheduler.default.values import job_times, must_run
from dovetail.simulator import simulate
from tests.scheduler.makers import make_view, sizes
from tests.simulator.makers import make_job, make_workload

ONE = {"v100": {"1": 1.0}}


def overdue(view, now_s):
    offers = offers_of(view, all_sizes=True)
    return must_run(offers, job_times(view, offers, now_s), view.capacity).tolist()


def test_a_job_is_overdue_after_a_turn_for_itself_and_for_each_before_it():
    # On one worker each takes 100 s and a start of 10 s; the second has one before it.
    view = make_view([{1: 1.0}] * 2, capacity=(2,), submit_s=[0.0, 0.0])

    assert overdue(view, 110.0) == [False, False]
    assert overdue(view, 111.0) == [True, False]
    assert overdue(view, 220.0) == [True, False]
    assert overdue(view, 221.0) == [True, True]


def test_the_overdue_are_served_in_order_of_submission_while_they_fit():
    view = make_view([{1: 1.0}, {2: 2.0}, {1: 1.0}], capacity=(2,), submit_s=[0.0, 0.0, 0.0])

    assert overdue(view, 1e6) == [True, False, True]


@pytest.mark.parametrize("knob", [0.0, 0.2, 1.0])
def test_an_overdue_job_runs_whatever_the_others_are_worth(knob):
    view = make_view(
        [{1: 1.0}] * 3, capacity=(1,), left=[50_000.0, 10.0, 10.0], submit_s=[0.0, 1e7, 1e7], weight=[1e-6, 1.0, 1.0]
    )

    assert sizes(Dovetail(knob).decide(view, 1e7), 3) == [1, 0, 0]


def test_a_long_job_is_done_within_its_bound_though_short_ones_never_stop_coming():
    # Short jobs ask for 1.25 of the one worker for four times the long job's length, and each would go first.
    long = make_job("long", work=1000.0, speed=ONE)
    short = [make_job(f"s{number}", submit_s=8.0 * number, work=9.0, speed=ONE) for number in range(500)]
    workload = make_workload(long, *short, nodes=(("v100", 1, 1),), restart_s=1.0)

    trial = simulate(workload, Dovetail(knob=0.0), name="x")

    # Nobody was there before it: overdue after 1001 s at the latest, and from then on it runs to its end.
    outcome = trial.outcome.jobs[0]
    assert outcome.finish_s <= 1001.0 + 1001.0 + 10.0
    assert np.isfinite([job.finish_s for job in trial.outcome.jobs]).all()
