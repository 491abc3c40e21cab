"""The parts that decide, one by one, against what was worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.runtime.coordinator import decisions as decisions_module
from dovetail.runtime.coordinator.decisions import Decisions, Send
from dovetail.runtime.coordinator.dense_keepers import MOST_BROKEN, RingKeepsDense
from dovetail.runtime.coordinator.failure_detector import Watchdog
from dovetail.runtime.coordinator.loop import MOST_KEPT, Events
from dovetail.runtime.coordinator.membership import Roster, worker_of
from dovetail.runtime.coordinator.pool_work import TaskPool
from dovetail.runtime.coordinator.state_machine import RunState
from dovetail.runtime.coordinator.task_scheduler import TaskScheduler
from dovetail.runtime.coordinator.work import BeginAgain, Fail, GoBack
from dovetail.runtime.messages import Accepted, Alive, Done, Hello, Holds, InRing, JoinRing, More, RingBroken, RingMeets
from dovetail.spec.run import RunWorker
from tests.runtime.coordinator.blueprints import make_blueprint
from tests.runtime.coordinator.world import World


def worker(name="worker-0", patience_s=10.0):
    hello = Hello(role="worker", name=name, process_id=7)
    return worker_of(hello, f"{name}/7".encode(), 0.0, patience_s, RunWorker())


def done(samples, compute_s, fixed_s=0.0):
    return Done(
        name="worker-0", generation=1, step=0, task=0, samples=samples, loss=0.0, compute_s=compute_s,
        fixed_s=fixed_s, wait_s=0.0,
    )  # fmt: skip


def test_states_say_whether_work_goes_on_and_whether_it_is_over():
    assert [state for state in RunState if state.is_working] == [RunState.RUNNING, RunState.SAVING]
    assert [state for state in RunState if state.is_over] == [RunState.DONE, RunState.FAILED]


def test_events_can_be_asked_for_by_many_and_as_often_as_they_like():
    events = Events()
    for number in range(3):
        events.add(f"event {number}")

    assert events.since(1) == events.since(1) == ("event 1", "event 2")
    assert events.since(3) == ()
    assert events.since(9) == ("event 0", "event 1", "event 2")  # of a coordinator that died


def test_the_newest_events_are_kept():
    events = Events()
    for number in range(MOST_KEPT + 5):
        events.add(str(number))

    assert events.since(0)[0] == "5"
    assert events.since(MOST_KEPT + 3) == (str(MOST_KEPT + 3), str(MOST_KEPT + 4))


def test_a_tasks_time_is_compared_with_the_prediction_before_it_is_learnt():
    one = worker()
    for _ in range(8):
        one.learn(done(100, 1.0))
    late = [one.lateness.limit_s]
    for _ in range(5):
        one.learn(done(100, 100.0))  # with its own time known, none of them would have been late

    assert late == [3.0]
    assert one.lateness._durations_s[8 - 1] == pytest.approx(99.0)


def test_a_piece_costs_what_is_waited_for_it_too():
    found = worker()
    found.learn(done(100, 1.0))
    report = done(110, 1.2)
    pieces = {"num_pieces": 2, "piece_samples": 10, "piece_s": 0.2}
    found.learn(msgspec.structs.replace(report, **pieces, piece_wait_s=0.3))

    # Twice 5 samples at 100 a second take 0.1 of these 0.2 s.
    assert found.speed.piece_fixed_s == pytest.approx((0.1 + 0.3) / 2)


def test_in_a_pool_too_workers_learn_how_late_they_are():
    world = World(make_blueprint(mode="async", samples=40, batch=2, workers=2), seed=1)
    world.run()

    assert all(len(member.lateness._durations_s) > 3 for member in world.machine.roster.workers.values())


def test_a_first_task_is_late_after_the_runs_patience():
    assert not worker(patience_s=10.0).is_late(100, 9.0)
    assert worker(patience_s=10.0).is_late(100, 11.0)


@pytest.mark.parametrize(
    ("stuck_s", "longest_s", "is_stuck"),
    [
        (50.0, 0.0, False),
        (61.0, 0.0, True),
        (9.0, 0.1, False),
        (11.0, 0.1, True),
        (11.0, 2.0, False),
        (41.0, 2.0, True),
    ],
)
def test_a_worker_hangs_by_its_own_measure_and_the_runs_patience(stuck_s, longest_s, is_stuck):
    one = worker()
    one.note(Alive(name="worker-0", stuck_s=stuck_s, longest_s=longest_s))

    assert one.is_stuck(10.0) is is_stuck


def test_a_standstill_takes_twice_as_long_each_time_until_something_moves():
    watchdog = Watchdog(patience_s=20.0)
    watchdog.moved(0.0)
    found = [now_s for now_s in range(0, 1000, 10) if watchdog.is_one([worker()], float(now_s))]
    watchdog.moved(1000.0)

    assert found == [130, 380, 870]  # more than 120, then 240, then 480 s
    assert watchdog.is_one([worker()], 1121.0)


def test_it_is_no_standstill_while_someone_computes():
    busy = worker()
    busy.note(Alive(name="worker-0", stuck_s=30.0, longest_s=30.0))

    assert not Watchdog(patience_s=1.0).is_one([busy], 1e6)


def test_positions_of_a_pool_are_handed_out_once_and_never_across_epochs():
    pool = TaskPool(samples=10, epochs=2)
    tasks = []
    while (task := pool.take("worker-0", 4, 0.0)) is not None:
        tasks.append(task.line)

    assert tasks == [(0, 0, 4), (1, 4, 8), (2, 8, 10), (3, 10, 14), (4, 14, 18), (5, 18, 20)]


def test_a_task_that_was_taken_back_counts_where_the_first_worker_finishes_it_after_all():
    pool = TaskPool(samples=4, epochs=1)
    pool.take("worker-0", 4, 0.0)
    pool.take_back(0)

    assert pool.accept("server-0", 0, 1) is not None
    assert pool.is_finished


def test_who_is_lost_after_the_first_step_began_is_not_waited_for():
    roster = Roster(server_names=["server-0"], settings={name: RunWorker() for name in ("a", "b")})
    roster.first_worker_s, roster.workers = 0.0, {"a": worker("a")}
    assert not roster.may_begin(1.0)
    roster.workers["b"] = worker("b")
    assert roster.may_begin(1.0)

    del roster.workers["b"]

    assert roster.may_begin(1.5)


def make_ring(*names):
    """Return a ring's keepers, its decisions and its roster."""
    roster = Roster(server_names=["server-0"], settings={name: RunWorker() for name in names}, generation=3, era=2)
    roster.workers = {name: worker(name) for name in names}
    roster.first_worker_s = 0.0
    decisions = Decisions()
    return RingKeepsDense(roster, decisions, lambda: roster.workers), decisions, roster


def calls(decisions):
    return [(d.to, d.message) for d in decisions.take() if isinstance(d, Send) and isinstance(d.message, JoinRing)]


def say(ring, kind, *names, **fields):
    return [ring.handle(kind(name=name, generation=3, **fields), 0.0) for name in names]


def test_a_ring_begins_with_the_parameters_of_one_who_holds_every_step_of_this_era():
    ring, decisions, _ = make_ring("a", "b", "c")
    ring.stand(7, "", (), 0.0)
    say(ring, Holds, "a", era=1, version=7)  # of a timeline that was given up
    say(ring, Holds, "b", era=2, version=6)
    assert ring.tick(0.0) is None
    assert calls(decisions) == []  # nobody knows what c holds
    say(ring, Holds, "c", era=2, version=7)
    ring.tick(0.0)
    ((to, first),) = calls(decisions)
    say(ring, RingMeets, "a", meeting="there")

    assert (to, first.source, first.folder, first.step) == (b"a/7", "c", "", 7)
    assert [message.meeting for _, message in calls(decisions)] == ["there"] * 3
    say(ring, InRing, "a", "b", version=7)
    assert not ring.are_there
    say(ring, InRing, "c", version=7)
    assert ring.are_there


def test_a_ring_that_nobody_can_begin_takes_the_checkpoint_of_that_step_or_goes_back():
    ring, decisions, _ = make_ring("a")
    ring.stand(7, "checkpoint", (), 0.0)
    say(ring, Holds, "a", era=2, version=6)
    ring.tick(0.0)
    assert calls(decisions)[0][1].folder == "checkpoint"

    ring.stand(7, "", (), 0.0)
    say(ring, Holds, "a", era=2, version=6)
    assert isinstance(ring.tick(0.0), GoBack)


def test_one_who_holds_the_parameters_is_waited_for():
    ring, _, _ = make_ring("a")
    ring.stand(7, "", ("a", "joined"), 0.0)
    say(ring, Holds, "a", era=2, version=6)

    assert ring.tick(19.0) is None
    assert isinstance(ring.tick(21.0), GoBack)


def test_twenty_who_join_at_once_are_taken_in_together():
    ring, _, roster = make_ring("a")
    ring.stand(0, "checkpoint", (), 0.0)
    say(ring, Holds, "a", era=2, version=0)
    ring.tick(0.0)
    say(ring, InRing, "a", version=0)
    wishes = []
    for number in range(20):
        now_s = 1.0 + 0.05 * number
        new = worker(f"joined-{number}")
        roster.workers[new.name] = new
        ring.join(new, now_s)
        wishes.append(ring.tick(now_s))
    wishes += [ring.tick(2.3)]

    assert wishes[:-1] == [None] * 20
    assert isinstance(wishes[-1], BeginAgain)
    assert wishes[-1].reason.count("joined-") == 20


def test_rings_that_break_again_and_again_end_the_run():
    ring, _, _ = make_ring("a")
    ring.stand(0, "checkpoint", (), 0.0)
    wishes = [say(ring, RingBroken, "a", step=0, error="no route")[0] for _ in range(MOST_BROKEN + 1)]

    assert all(isinstance(wish, BeginAgain) for wish in wishes[:-1])
    assert isinstance(wishes[-1], Fail)
    assert "no route" in wishes[-1].error


def test_a_member_with_other_steps_than_it_should_have_breaks_the_ring():
    ring, _, _ = make_ring("a")
    ring.stand(7, "checkpoint", (), 0.0)

    assert isinstance(say(ring, InRing, "a", version=8)[0], BeginAgain)


def test_the_journal_begins_anew_now_and_then(monkeypatch):
    monkeypatch.setattr(decisions_module, "MOST_LINES", 3)
    world = World(make_blueprint(mode="sync", samples=40, batch=2, every_steps=None), seed=1)
    longest = 0
    while not world.machine.state.is_over:
        world.step() or world.tick()
        longest = max(longest, len(world.journal))

    assert 3 <= longest <= 5  # of twenty steps


def test_a_worker_that_comes_back_under_its_name_is_not_taken_for_one_that_will_ask_for_more():
    blueprint = make_blueprint(samples=480, batch=120, servers=1, workers=2, tail=0.5)
    roster = Roster(server_names=["server-0"], settings=dict(blueprint.run.workers_of(0)))
    scheduler = TaskScheduler(blueprint, roster, decisions := Decisions(), everyone=False)
    scheduler.stand(0, 0)

    def come(name, process_id):
        hello = Hello(role="worker", name=name, process_id=process_id, generation=1)
        roster.workers[name] = worker_of(hello, f"{name}/{process_id}".encode(), 0.0, 10.0, RunWorker())
        roster.first_worker_s = 0.0
        scheduler.join(name)

    def go(name):
        del roster.workers[name]
        scheduler.drop(name)

    def whole(step):
        for task in list(step.tasks.values()):
            message = Accepted(
                name="server-0", generation=1, step=step.number, task=task.number,
                positions=task.num_positions, samples=task.num_positions, loss=0.0,
            )  # fmt: skip
            assert step.accept(message)

    for number, name in enumerate(("extra-1", "worker-0", "worker-1")):
        come(name, number)
    scheduler.advance(1.0)
    for worker in list(roster.workers.values()):  # each is done with its own of the first step, and has one of the next
        task = next(t for t in scheduler.current.tasks.values() if t.worker == worker.name)
        while task.is_open:
            scheduler.asks(worker, More(generation=1, step=0, task=task.number, busy_s=0.0, fetch_s=0.0), 1.0)
            scheduler.answer_due(100.0)
    following = scheduler.step_of(1)
    assert {task.worker for task in following.tasks.values()} == {"extra-1", "worker-0", "worker-1"}
    go("extra-1")
    go("worker-1")
    come("worker-1", 9)
    scheduler.advance(2.0)
    decisions.take()

    whole(scheduler.current)
    scheduler.next_step(3.0)
    scheduler.advance(3.0)

    sent = [decision.message for decision in decisions.take() if decision.to == b"worker-1/9"]
    assert sent, "it had all that it would ever have asked for"
