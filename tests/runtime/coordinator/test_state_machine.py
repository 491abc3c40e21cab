"""Everything that the coordinator decides, without processes: whatever happens, every sample counts once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from dovetail.runtime.coordinator.state_machine import RunState
from dovetail.runtime.coordinator.steps import Step
from dovetail.runtime.dispatch import StepPlan
from dovetail.runtime.messages import Accepted, Apply, Close, Extend, Failed, More, SaveDense, SaveNow
from tests.runtime.coordinator.blueprints import make_blueprint
from tests.runtime.coordinator.made_up import ModelWorker
from tests.runtime.coordinator.world import World

MODES = [
    {"mode": "sync"},
    {"mode": "sync", "clip": True},
    {"mode": "sync", "dense": "ring"},
    {"mode": "ssp"},
    {"mode": "async"},
    {"mode": "sync", "bits": 4},
    {"mode": "async", "bits": "auto"},
    {"mode": "sync", "stages": (2, 1)},
    {"mode": "sync", "dense": "ring", "stages": (2, 1)},
    {"mode": "sync", "dense": "ring", "stages": (2, 1), "clip": True},
    {"mode": "sync", "dense": "ring", "stages": (2, 1), "sparse": (0,)},
    {"mode": "ssp", "stages": (2, 1)},
    {"mode": "async", "stages": (2, 1)},
]


def name_of(mode: dict[str, object]) -> str:
    return "-".join(
        f"{key}-{value}" if key in ("clip", "bits", "stages", "sparse") else str(value) for key, value in mode.items()
    )


@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_a_run_without_faults_counts_every_sample_once(mode) -> None:
    for seed in range(10):
        world = World(make_blueprint(**mode, epochs=2), seed)

        world.run()

        assert world.machine.state is RunState.DONE
        assert world.store.newest().manifest.position == 24  # the store checks what is in it


FAULTS = (
    "kill", "kill silently", "kill coordinator", "hang", "time", "long time", "save", "lose", "repeat", "join",
    "kill server", "damage log",
)  # fmt: skip


def disturb(world: World, fault: str) -> None:
    """Let something go wrong."""
    names = sorted([*world.servers, *world.stage_workers, *world.workers])
    workers = sorted([*world.stage_workers, *world.workers])
    if fault == "kill" and names:
        world.kill(world.random.choice(names))
    elif fault == "kill silently" and names:
        world.kill(world.random.choice(names), told=False)
    elif fault == "kill server" and world.servers:
        world.kill(world.random.choice(sorted(world.servers)))
    elif fault == "damage log" and world.logs:  # it is found and not used
        world.logs.pop(world.random.choice(sorted(world.logs)))
    elif fault == "kill coordinator":
        world.kill_coordinator()
    elif fault == "hang" and workers:
        name = world.random.choice(workers)
        (world.workers.get(name) or world.stage_workers[name]).hangs = True
    elif fault == "time":
        world.tick()
    elif fault == "long time":
        for process in world.processes():
            world.heartbeat(process)
        world.tick(5.0)
    else:
        disturb_messages(world, fault)


def disturb_messages(world: World, fault: str) -> None:
    """Have messages come that nobody expects, or not come."""
    if fault == "save":
        world.to_coordinator.append((b"launcher/1", SaveNow()))
    elif fault == "lose":
        reached = [process for process in world.processes() if process.to_it]
        if reached:
            queue = world.random.choice(reached).to_it
            del queue[world.random.randrange(len(queue))]
    elif fault == "join" and len(world.workers) < 6:
        world.start(f"joined-{len(world.workers)}")
    elif fault == "repeat" and world.to_coordinator:
        world.to_coordinator.append(world.random.choice(list(world.to_coordinator)))


def walk(mode: dict[str, object], seed: int, num_events: int = 30) -> World:
    """Return a world after faults at random moments and a quiet end; how large it is depends on the seed too."""
    draw = Random(seed)
    has_pieces = draw.random() < 0.1  # batches large enough to be divided into pieces as well
    sizes = {
        "samples": draw.randint(60, 120) if has_pieces else draw.randint(6, 40),
        "batch": draw.randint(20, 60) if has_pieces else draw.randint(2, 8),
        "servers": draw.randint(1, 3),
        "workers": draw.randint(1, 4),
        "every_steps": draw.choice([None, 1, 3]),
        "epochs": draw.randint(1, 2),
        "tail": draw.choice([0.0, 0.3]),
        "redo_log": draw.random() < 0.8,
    }
    world = World(make_blueprint(**{**sizes, **mode}), seed)
    for _ in range(num_events):
        for _ in range(world.random.randint(0, 12)):
            if world.machine.state.is_over:
                return world
            world.step()
        disturb(world, world.random.choice(FAULTS))
    world.run()
    return world


@pytest.mark.parametrize(
    ("first", "last"), [(0, 15), pytest.param(15, 21_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_whatever_goes_wrong_every_sample_counts_once(mode, first, last) -> None:
    # The long one makes 2 * 10^5 sequences over all modes, of up to 30 faults each and what happens between.
    for seed in range(first, last):
        world = walk(mode, seed)

        assert world.machine.state is RunState.DONE, world.machine.failure
        assert world.store.newest().manifest.position == world.total


@pytest.mark.parametrize("mode", MODES, ids=name_of)
@pytest.mark.parametrize("last", [8, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_servers_and_coordinators_that_die_cost_no_step(mode, last) -> None:
    for seed in range(last):
        world = World(make_blueprint(**{**mode, "samples": 30, "every_steps": None, "servers": 3}), seed)
        while not world.machine.state.is_working:  # before there is anything to lose
            if not world.step():
                world.pass_time()
        counted = 0
        for _ in range(20):
            for _ in range(world.random.randint(0, 25)):
                world.step()
            if world.machine.state.is_over:
                break
            for _ in range(world.random.choice([1, 1, 2])):  # now and then two at once
                name = world.random.choice(["coordinator", *sorted(world.servers)])
                disturb(world, "kill coordinator") if name == "coordinator" else world.kill(name)
            if world.machine.state.is_working:
                assert world.machine.work.step >= counted
                counted = world.machine.work.step
        world.run()

        assert world.machine.state is RunState.DONE, world.machine.failure
        assert not [event for event in world.events if "goes back" in event], world.events


def test_a_worker_that_was_not_told_of_a_piece_of_its_task_makes_the_step_begin_again() -> None:
    world = World(make_blueprint(mode="sync", samples=200, batch=40, tail=0.5, every_steps=None), seed=3)
    told: list[ModelWorker] = []
    while not told:
        world.step() or world.tick()
        told = [each for each in world.workers.values() if any(isinstance(m, Extend) for m in each.to_it)]
    worker = told[0]
    worker.to_it = deque(message for message in worker.to_it if not isinstance(message, Extend))
    task = next(iter(worker.tasks.values()))
    worker.to_it.append(Close(generation=worker.generation, step=task.assign.step, task=task.assign.task))

    world.run()

    assert world.machine.state is RunState.DONE
    assert any("was not told of all of task" in event for event in world.events)
    assert world.store.newest().manifest.position == world.total


@pytest.mark.parametrize("seed", [624, 693, 802])  # here a piece is left when a task was closed
def test_a_task_that_was_closed_does_not_grow_when_its_worker_is_heard_to_ask_once_more(seed) -> None:
    how = {"mode": "sync", "samples": 72, "batch": 24, "tail": 0.3, "workers": 5, "servers": 1, "every_steps": None}
    world = World(make_blueprint(**how), seed)
    while not world.machine.state.is_over:
        for worker in world.workers.values():
            for step, task in (key for key, each in worker.tasks.items() if each.asked):
                if world.random.random() < 0.2:
                    worker.tell(More(generation=worker.generation, step=step, task=task))
        world.step() or world.pass_time()

    assert world.machine.state is RunState.DONE, world.machine.failure  # the store checks what is kept


def test_what_slow_workers_give_back_counts_once_whatever_goes_wrong() -> None:
    how: dict[str, object] = {"mode": "sync", "tail": 0.5, "batch": 30, "samples": 120, "workers": 4}
    num_given_back = 0
    for seed in range(20):
        world = walk(how, seed)
        assert world.machine.state is RunState.DONE, world.machine.failure
        assert world.store.newest().manifest.position == world.total
        num_given_back += world.num_given_back

    assert num_given_back > 5


def test_positions_that_come_back_out_of_order_make_the_step_begin_again() -> None:
    step = Step.divided(
        0, epoch=0, first=0, last=20, plan=StepPlan(main={"a": 15, "b": 5}, tail_samples=0, step_s=1.0), now_s=0.0
    )
    task = step.task_for("a", 1, 0.0)
    assert task is not None
    task.is_asked_back = True
    early = Accepted(name="s", generation=1, step=0, task=task.number, positions=9, samples=9, loss=0.0)
    assert step.accept(early)  # it came before the answer of its worker
    assert not task.accepted

    assert not step.take_back(task, [(5, 10)])  # not the last ones
    assert step.take_back(task, [(9, 12), (12, 15)])
    assert (task.ranges, task.accepted) == ([(0, 9)], {"s"})
    assert not step.accept(replace(early, positions=15))


def test_who_is_told_late_to_write_a_checkpoint_is_told_of_which_step() -> None:
    world = World(make_blueprint(mode="sync", dense="ring", workers=1, samples=40, every_steps=None), seed=5)
    worker = next(iter(world.workers.values()))
    while not worker.tasks:
        world.step() or world.tick()
    world.to_coordinator.append((b"launcher/1", SaveNow()))
    while not any(isinstance(message, SaveDense) for message in worker.to_it):
        world.step() or world.tick()
    asked = next(message for message in worker.to_it if isinstance(message, SaveDense))
    worker.to_it = deque(message for message in worker.to_it if message is not asked)
    while world.machine.work.step < asked.step + 2:
        world.step() or world.tick()

    world.run()  # the store refuses a checkpoint that holds other steps than it says

    assert world.machine.state is RunState.DONE
    assert any("could not be written" in event for event in world.events)


def test_a_worker_of_a_later_stage_that_cannot_go_on_ends_the_run() -> None:
    world = World(make_blueprint(mode="sync", stages=(1,)), seed=2)
    while not world.machine.state.is_working:
        world.step() or world.tick()
    stage = world.stage_workers["stage-1"]

    stage.tell(Failed(name="stage-1", error="the loss is nan", hint="lower the rate"))
    while not world.machine.state.is_over:
        world.step() or world.tick()

    assert world.machine.state is RunState.FAILED
    assert world.machine.failure == ("stage-1: the loss is nan", "lower the rate")


def go_on_until(world: World, happened: Callable[[], bool]) -> None:
    """Let things happen without faults until something has."""
    for _ in range(5_000):
        if happened():
            return
        world.step() or world.pass_time()
    raise AssertionError(f"it does not come to this: {world.events[-8:]}")


RINGS = {"mode": "sync", "dense": "ring"}


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_of_a_later_stage_that_is_not_in_the_ring_of_its_stage_adds_up_nothing(seed) -> None:
    # The coordinator comes back; one of a stage says late who it is, and holds all steps that count.
    world = World(make_blueprint(**RINGS, stages=(2,), samples=40, workers=1), seed)
    go_on_until(world, lambda: world.machine.work.step == 2)
    world.kill_coordinator()
    worker, late = world.workers["worker"], world.stage_workers["stage-1-1"]
    held, late.to_it, late.stopped = late.to_it, deque(), True  # it gives no sign of life
    go_on_until(world, lambda: worker.generation > late.generation and bool(worker.tasks))
    late.to_it, late.stopped, worker.hangs = held, False, True
    go_on_until(world, lambda: "stage-1-1" in worker.staff[0] and late.generation == worker.generation)
    worker.hangs = False

    world.run()  # the store refuses a checkpoint in which something is missing

    assert world.machine.state is RunState.DONE


def test_a_stage_that_was_not_told_to_write_its_part_of_the_last_checkpoint_is_told_again() -> None:
    world = World(make_blueprint(**RINGS, stages=(1, 1), every_steps=None), seed=4)
    deaf = world.stage_workers["stage-2"]
    go_on_until(world, lambda: any(isinstance(message, SaveDense) for message in deaf.to_it))
    deaf.to_it = deque(message for message in deaf.to_it if not isinstance(message, SaveDense))
    begun_s = world.now_s

    world.run()

    assert world.machine.state is RunState.DONE, world.machine.failure
    assert world.now_s - begun_s < 30.0


@pytest.mark.parametrize("seed", range(10))
def test_a_stage_that_a_coordinator_did_not_tell_of_a_commit_before_it_died_is_told_by_the_next(seed) -> None:
    world = World(make_blueprint(**RINGS, stages=(2, 1), samples=40, every_steps=None), seed)
    stages = world.stage_workers.values()
    go_on_until(world, lambda: any(isinstance(message, Apply) for each in stages for message in each.to_it))
    for each in stages:
        each.to_it = deque(message for message in each.to_it if not isinstance(message, Apply))
    world.kill_coordinator()

    world.run()

    assert world.machine.state is RunState.DONE
    assert not any("goes back" in event for event in world.events)
