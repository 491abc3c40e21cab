"""A server in a thread: the test is its coordinator and its worker, over real sockets."""

import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from torch import nn

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import (
    Accepted,
    AddedUp,
    AddUp,
    Commit,
    Committed,
    Hello,
    Load,
    Push,
    Pushed,
    Ready,
    Stop,
)
from dovetail.runtime.process import Process
from dovetail.runtime.server.loop import ServerLoop
from tests.runtime.worker.makers import Bench
from tests.runtime.worker.test_control import next_of

BATCH = 100


class Normed(nn.Module):
    """A norm of three numbers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 1)

    def forward(self, dense):
        return self.out(self.norm(dense))


class Scene:
    """A server that holds the first checkpoint, and whoever talks with it."""

    def __init__(self, folder, things):
        bench = Bench(folder, own=Normed())
        things.callback(bench.close)
        process = Process(folder, "coordinator")
        self.coordinator = process.listen([process.blueprint.coordinator.local_address])
        things.callback(self.coordinator.close)
        server = ServerLoop(Process(folder, "server-0"), 0)
        thread = threading.Thread(target=server.run)
        thread.start()
        things.callback(thread.join, 60)
        self._server = next_of(self.coordinator, Hello).sender
        things.callback(self.tell, Stop())
        self.worker = Process(folder, "worker-0").call(bench.blueprint.servers[0])
        things.callback(self.worker.close)
        self.tell(Load(generation=1, step=0, folder=str(checkpoints.newest(folder))))
        assert self.hear(Ready).version == 0
        self.dense_size = bench.blueprint.dense_size

    def tell(self, message):
        self.coordinator.send(self._server, message)

    def hear(self, kind):
        return next_of(self.coordinator, kind).message

    def commit(self, step):
        self.tell(Commit(generation=1, step=step, scale=1.0, dense_scale=1.0, factor=1.0))


@contextmanager
def scene(folder):
    with ExitStack() as things:
        yield Scene(folder, things)


def norm_of(step, values):
    sums = np.concatenate([[len(values)], values.mean(axis=0), ((values - values.mean(axis=0)) ** 2).sum(axis=0)])
    message = AddUp(
        generation=1, step=step, task=0, worker="worker-0/1", place=0, back=False, positions=BATCH, batch=BATCH,
        offset=0, momentum=0.1,
    )  # fmt: skip
    return message, [sums.view(np.int64)]


def test_what_belongs_to_the_next_step_waits_for_the_commit_that_its_worker_knows_of(tmp_path):
    # A worker in a ring, which pulls nothing, may hear of a commit before a server does that is busy.
    values = np.random.default_rng(1).normal(size=(BATCH, 3))
    with scene(tmp_path / "run") as made:
        made.worker.ask(*norm_of(1, values))
        assert made.worker.receive(0.3) is None
        made.commit(0)
        envelope = made.worker.receive(60)

    assert isinstance(envelope.message, AddedUp), envelope.message
    np.testing.assert_allclose(np.array(envelope.arrays[0]).view(np.float64)[1:4], values.mean(axis=0))


def test_gradients_of_the_next_step_wait_too_and_count_once_it_is_there(tmp_path):
    with scene(tmp_path / "run") as made:
        push = Push(
            generation=1, step=1, task=0, worker="worker-0/1", part=0, tables=(), dense=True, last=True,
            positions=BATCH, samples=BATCH, loss=0.5,
        )  # fmt: skip
        made.worker.ask(push, [np.ones(made.dense_size, dtype=np.float32)])
        assert made.worker.receive(0.3) is None
        made.commit(0)
        envelope = made.worker.receive(60)
        accepted, committed = made.hear(Accepted), made.hear(Committed)

    assert envelope.message == Pushed(counts=True)
    assert (accepted.step, accepted.task, committed.step) == (1, 0, 0)


@pytest.mark.parametrize("step", [-1, 2, 10**9])
def test_what_belongs_to_no_step_that_comes_is_not_kept(tmp_path, step):
    with scene(tmp_path / "run") as made:
        made.worker.ask(*norm_of(step, np.ones((BATCH, 3))))
        envelope = made.worker.receive(60)

    assert f"a norm of step {step}" in envelope.message.reason
