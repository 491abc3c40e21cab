"""Who gets how much of a step's tail, by what workers say of themselves."""

from __future__ import annotations

import pytest

from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.membership import Roster, worker_of
from dovetail.runtime.coordinator.task_scheduler import TaskScheduler
from dovetail.runtime.messages import Close, Done, Extend, Hello, More
from dovetail.spec.run import RunWorker
from tests.runtime.coordinator.blueprints import make_blueprint

SAMPLES_PER_S = 100.0


@pytest.fixture
def team():
    """Return a step of 1000 samples among two workers that do 100 a second each, begun at 0, with its tail."""
    blueprint = make_blueprint(samples=1000, batch=1000, servers=1, workers=2, tail=0.2)
    roster = Roster(server_names=["server-0"], settings=dict(blueprint.run.workers_of(0)))
    scheduler = TaskScheduler(blueprint, roster, decisions := Decisions(), everyone=False)
    scheduler.stand(0, 0)
    for name in ("worker-0", "worker-1"):
        hello = Hello(role="worker", name=name, process_id=7, generation=1)
        roster.workers[name] = worker_of(hello, name.encode(), 0.0, 10.0, RunWorker())
        for _ in range(3):
            roster.workers[name].learn(
                Done(
                    name=name, generation=1, step=0, task=0, samples=400, loss=0.0, compute_s=400 / SAMPLES_PER_S,
                    fixed_s=0.0, wait_s=0.0,
                )
            )  # fmt: skip
        scheduler.join(name)
    roster.first_worker_s = -100.0
    scheduler.advance(0.0)
    decisions.take()
    assert scheduler.current.tail_left == 200
    return scheduler, decisions, roster.workers


def asks(team, name, now_s, busy_s):
    """Have a worker ask, and be answered; return what it is told."""
    scheduler, decisions, workers = team
    task = next(each for each in scheduler.current.tasks.values() if each.worker == name)
    more = More(generation=1, step=0, task=task.number, busy_s=busy_s, fetch_s=0.0)
    scheduler.asks(workers[name], more, now_s)
    scheduler.ran_out(workers[name], now_s)
    return next(each.message for each in decisions.take() if isinstance(each.message, Extend | Close))


def test_a_piece_is_half_of_the_share_of_a_worker_that_ends_with_the_other(team):
    told = asks(team, "worker-0", 3.0, busy_s=0.0)

    # worker-1 is free a second later: 100 (t - 3) + 100 (t - 4) = 200.
    assert told.last - told.first == 75


def test_what_a_worker_says_of_itself_counts_more_than_what_its_tasks_took(team):
    asks(team, "worker-1", 3.0, busy_s=2.0)  # it will be at the last of its task until 5.0, though it should end at 4.0
    left = team[0].current.tail_left
    told = asks(team, "worker-0", 4.0, busy_s=0.0)

    # 100 (t - 4) + 100 (t - 5 - what worker-1 has taken since) = left
    others_s = 1.0 + (200 - left) / SAMPLES_PER_S
    share = SAMPLES_PER_S * (left / SAMPLES_PER_S + others_s) / 2
    assert told.last - told.first == pytest.approx(share / 2, abs=1)


def test_a_worker_that_should_have_ended_is_not_taken_to_be_free(team):
    told = asks(team, "worker-0", 6.0, busy_s=0.0)  # worker-1 should have asked two seconds ago

    assert told.last - told.first > 50


def test_one_that_gets_no_more_is_waited_for(team):
    scheduler, _, _ = team
    late = next(each for each in scheduler.current.tasks.values() if each.worker == "worker-1")
    late.is_open, late.busy_until_s = False, 9.0
    told = asks(team, "worker-0", 4.0, busy_s=0.0)

    assert told.last - told.first == 200  # done at 6.0, and worker-1 at 9.0
