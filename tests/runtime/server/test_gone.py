"""What a server remembers for a worker goes with the worker: what it pulled, and what it holds of dense parameters."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.dense.coding import ReaderCopies
from dovetail.runtime.messages import Forgotten, Gone, Hello, Load, Pull, Pulled, Push, Pushed, Ready, Stop, WhoAreYou
from dovetail.runtime.process import Process
from dovetail.runtime.server.loop import ServerLoop
from dovetail.transport import name_in
from tests.runtime.coordinator.blueprints import make_blueprint
from tests.runtime.coordinator.world import World
from tests.runtime.worker.makers import Bench
from tests.runtime.worker.test_control import next_of

KEYS = np.arange(5, dtype=np.int64)


class Scene:
    """A server in a thread, in `async`; the test is its coordinator and two of its workers, over real sockets."""

    def __init__(self, folder, things):
        bench = Bench(folder, mode="async", workers=2)
        things.callback(bench.close)
        process = Process(folder, "coordinator")
        self._coordinator = process.listen([process.blueprint.coordinator.local_address])
        things.callback(self._coordinator.close)
        self.server = ServerLoop(Process(folder, "server-0"), 0)
        thread = threading.Thread(target=self.server.run)
        thread.start()
        things.callback(thread.join, 60)
        self._address = next_of(self._coordinator, Hello).sender
        things.callback(self.tell, Stop())
        self._place, self._folder, self._things = bench.blueprint.servers[0], folder, things
        self.tell(Load(generation=1, step=0, folder=str(checkpoints.newest(folder))))
        next_of(self._coordinator, Ready)
        self.num_dense, self.width = bench.blueprint.dense_size, bench.blueprint.tables[0].width

    def tell(self, message):
        self._coordinator.send(self._address, message)

    def hear(self, kind):
        return next_of(self._coordinator, kind).message

    def worker(self, name):
        line = Process(self._folder, name).call(self._place)
        self._things.callback(line.close)
        return line

    def pull(self, line, number):
        pull = Pull(generation=1, version=0, tables=(0,), dense=True, number=number, dense_bits=8)
        line.ask(pull, [KEYS])
        assert isinstance(line.receive(60).message, Pulled)

    def push(self, line, worker, task, number):
        """Push gradients of a pull, without its keys; return the answer."""
        push = Push(
            generation=1, step=0, task=task, worker=f"{worker}/1", part=0, tables=(0,), dense=True, last=True,
            positions=1, samples=1, loss=0.5, pulls=(number,), places=(0,),
        )  # fmt: skip
        line.ask(push, [np.ones((len(KEYS), self.width), np.float32), np.ones(self.num_dense, np.float32)])
        return line.receive(60).message


@pytest.fixture
def scene(tmp_path):
    with ExitStack() as things:
        yield Scene(tmp_path / "run", things)


def test_a_worker_that_is_gone_leaves_nothing_with_a_server(scene):
    stays, goes = scene.worker("worker-0"), scene.worker("worker-1")
    for number in range(3):
        scene.pull(stays, number)
        scene.pull(goes, number)

    scene.tell(Gone(worker="worker-1"))
    scene.tell(WhoAreYou())
    scene.hear(Hello)  # and so it has heard the one before

    kept, copies = scene.server._shard.kept, scene.server._wire._copies
    assert kept.find("worker-1", 2) is None
    assert list(kept._of_worker) == ["worker-0"]
    assert [name_in(reader) for reader in copies._copies] == ["worker-0"]
    assert scene.push(stays, "worker-0", 0, 2) == Pushed(counts=True)


def test_a_worker_that_was_taken_for_gone_says_its_keys_again(scene):
    line = scene.worker("worker-1")
    scene.pull(line, 7)
    scene.tell(Gone(worker="worker-1"))
    scene.tell(WhoAreYou())
    scene.hear(Hello)

    assert scene.push(line, "worker-1", 0, 7) == Forgotten()
    scene.pull(line, 8)
    assert scene.push(line, "worker-1", 0, 8) == Pushed(counts=True)


def test_copies_are_forgotten_by_worker_not_by_how_names_begin():
    copies = ReaderCopies(np.empty(0, dtype=np.int64))
    for line in (b"worker-1/rows#ab", b"worker-1/dense#cd", b"worker-10/rows#ef"):
        copies.answer(line, np.ones(4, dtype=np.float32), base=-1, bits=8)

    copies.forget("worker-1")

    assert list(copies._copies) == [b"worker-10/rows#ef"]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_servers_are_told_of_every_worker_that_is_lost(mode, told):
    world = World(make_blueprint(mode=mode, samples=200, batch=20, workers=3, servers=2, every_steps=None), seed=4)
    while world.machine.work.step < 2:
        world.step() or world.tick()
    name = min(world.workers)

    world.kill(name, told=told)
    heard = dict.fromkeys(world.servers, False)
    while not (all(heard.values()) or world.machine.state.is_over):
        for server in world.servers.values():
            heard[server.name] |= Gone(worker=name) in server.to_it
        world.step() or world.pass_time()

    assert all(heard.values()), heard
