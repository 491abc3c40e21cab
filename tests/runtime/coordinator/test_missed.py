"""A worker that is not told that a generation began: it says so when it is given work, and is told again."""

from collections import deque

import pytest

from dovetail.runtime.coordinator.state_machine import RunState
from dovetail.runtime.messages import AskResidual, Assign, Gone, Hello, Reset
from dovetail.runtime.process import Process
from dovetail.runtime.worker.control import Control
from tests.runtime.coordinator.blueprints import make_blueprint
from tests.runtime.coordinator.world import World
from tests.runtime.worker.makers import Bench, running
from tests.runtime.worker.test_control import next_of


@pytest.mark.parametrize("how", [{"mode": "async", "bits": "auto"}, {"mode": "sync", "bits": 4}, {"mode": "ssp"}])
def test_a_worker_that_missed_the_beginning_works_and_the_run_ends(how):
    world = World(make_blueprint(**how, samples=60, batch=6, workers=3, every_steps=None), seed=1)
    worker = world.workers[min(world.workers)]
    while not any(isinstance(message, Assign) for message in worker.to_it):
        worker.to_it = deque(message for message in worker.to_it if not isinstance(message, Reset))
        world.step() or world.pass_time()
    worker.to_it = deque(message for message in worker.to_it if not isinstance(message, Reset))
    assert worker.generation < world.machine.roster.generation

    world.run()

    assert world.machine.state is RunState.DONE
    assert worker.generation == world.machine.roster.generation
    assert world.store.newest().manifest.position == world.total


def test_a_hello_of_before_changes_nothing():
    world = World(make_blueprint(mode="async", samples=60, batch=6, workers=2, every_steps=None), seed=1)
    while world.machine.work.step < 2:
        world.step() or world.pass_time()
    generation = world.machine.roster.generation
    worker = world.workers[min(world.workers)]
    for server in world.servers.values():
        server.to_it.clear()

    for missed in (0, generation - 1, generation + 1):
        worker.hello(missed=missed)
        while world.to_coordinator:
            world.deliver_to_coordinator()

    assert not any(isinstance(message, Reset) for message in worker.to_it)
    assert not any(isinstance(message, Gone) for server in world.servers.values() for message in server.to_it)


@pytest.mark.parametrize(
    "message",
    [
        Assign(generation=3, step=0, task=0, epoch=0, ranges=((0, 1),), is_open=False),
        AskResidual(generation=3, number=1, step=-1),
    ],
)
def test_a_worker_says_which_beginning_it_missed(tmp_path, message):
    bench = Bench(tmp_path / "run")
    coordinator = Process(bench.folder, "coordinator")
    listener = coordinator.listen([coordinator.blueprint.coordinator.local_address])
    control = Control(Process(bench.folder, "worker-0"), lambda _: None, lambda: 2, lambda: None)
    try:
        with running(control.run):
            hello = next_of(listener, Hello)
            listener.send(hello.sender, message)
            again = next_of(listener, Hello).message
            control.stopped.set()
    finally:
        listener.close()
        bench.close()

    assert (hello.message.missed, again.missed, again.generation) == (0, 3, 2)
