"""A whole worker in this process: the test is its coordinator, over real sockets; shards answer for the servers."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    Apply,
    Close,
    Done,
    Extend,
    Failed,
    GaveBack,
    GiveBack,
    Hello,
    InRing,
    JoinRing,
    More,
    RanOut,
    Recall,
    Reduced,
    Reset,
    Stop,
)
from dovetail.runtime.process import Process
from dovetail.runtime.worker.loop import work
from dovetail.spec.run import RunWorker
from dovetail.spec.run_sections import RunOptimizer
from testbed.direct_servers import answer_as
from tests.runtime.worker.makers import assign, running
from tests.runtime.worker.test_compute import by_autograd
from tests.runtime.worker.test_control import next_of
from tests.transport.makers import serving

PLAIN = RunOptimizer(name="sgd", rows="sgd", learning_rate=1.0)


@pytest.fixture(autouse=True)
def settings_of_this_process():
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(threads)


class Coordinator:
    """What the worker says, and a way to answer."""

    def __init__(self, listener):
        self._listener, self._heard = listener, []
        self.worker = next_of(listener, Hello).sender
        self.tell(Reset(generation=1))

    def tell(self, *messages):
        for message in messages:
            self._listener.send(self.worker, message)

    def hear(self, kind, timeout_s=60.0):
        """Return the next message of some kind; others are kept for later."""
        deadline_s = time.monotonic() + timeout_s
        while (found := next((each for each in self._heard if isinstance(each, kind)), None)) is None:
            assert time.monotonic() < deadline_s, f"no {kind.__name__} among {self._heard}"
            envelope = self._listener.receive(0.1)
            if envelope is not None:
                self._heard.append(envelope.message)
        self._heard.remove(found)
        return found


@contextmanager
def worker_of(bench, own=None) -> Iterator[Coordinator]:
    """Run a worker, until the block ends and it is told to stop."""
    process = Process(bench.folder, "coordinator")
    listener = process.listen([process.blueprint.coordinator.local_address])
    spec = bench.blueprint.servers[0]
    server = Process(bench.folder, spec.name).listen([spec.local_address])
    worker = Process(bench.folder, "worker-0")
    try:
        with serving(server, answer_as(bench.shards[0])), running(lambda: work(worker, RunWorker(), bench.source, own)):
            coordinator = Coordinator(listener)
            try:
                yield coordinator
            finally:
                coordinator.tell(Stop())
    finally:
        listener.close()


def dense_of(bench):
    return bench.shards[0].values.copy()


def commit(bench):
    bench.shards[0].commit(scale=1.0, dense_scale=1.0, factor=1.0)


def test_a_task_that_grows_is_computed_once_and_its_gradients_are_those_of_the_whole(make_bench):
    bench = make_bench(optimizer=PLAIN, micro_batch=16)
    before = dense_of(bench)
    with worker_of(bench) as coordinator:
        coordinator.tell(assign((0, 40), is_open=True))
        asked = coordinator.hear(More)
        coordinator.tell(Extend(generation=1, step=0, task=0, first=60, last=80))
        coordinator.hear(More)
        coordinator.hear(RanOut)  # nothing is known yet: the last gradients are held
        coordinator.tell(Close(generation=1, step=0, task=0))
        done = coordinator.hear(Done)

    commit(bench)
    batches = [bench.samples.read(0, 0, 40), bench.samples.read(0, 60, 80)]
    alone = [by_autograd(bench, batch) for batch in batches]
    assert (asked.step, asked.task) == (0, 0)
    assert done.samples == 60
    assert done.loss == pytest.approx(sum(loss for loss, _, _ in alone), rel=1e-5)
    assert (done.num_pieces, done.piece_samples) == (2, 20)
    assert 0 < done.piece_s <= done.compute_s
    kinds = [span.kind for span in done.spans]
    assert (kinds.count("compute"), kinds.count("fetch")) == (6, 6)  # 4 + 12 + 12 + 12, then 10 + 10
    np.testing.assert_allclose(before - dense_of(bench), sum(dense for _, dense, _ in alone), rtol=1e-3, atol=1e-4)


def test_what_is_given_back_is_not_computed_and_the_rest_once(make_bench):
    bench = make_bench(optimizer=PLAIN, micro_batch=8)
    before = dense_of(bench)
    expected, task = [(0, 20)], 0
    with worker_of(bench) as coordinator:
        coordinator.tell(assign((0, 20), task=0))  # by which the worker knows its pace
        coordinator.hear(Done)
        given = ()
        while not given and task < 20:  # on a machine that stands still all may be begun by then
            task += 1
            ask = GiveBack(generation=1, step=0, task=task, samples_per_s=1e9, fixed_s=0.0)
            coordinator.tell(assign((20, 80), task=task, is_open=True), ask)
            given = coordinator.hear(GaveBack).ranges
            expected.append((20, given[0][0] if given else 80))
            coordinator.hear(More)
            coordinator.tell(Close(generation=1, step=0, task=task))
            done = coordinator.hear(Done)

    assert given
    assert given[-1][1] == 80
    assert done.samples == given[0][0] - 20
    commit(bench)
    alone = [by_autograd(bench, bench.samples.read(0, *each)) for each in expected]
    np.testing.assert_allclose(before - dense_of(bench), sum(dense for _, dense, _ in alone), rtol=1e-3, atol=1e-4)


def test_a_task_that_was_recalled_or_of_an_old_generation_leaves_nothing(make_bench):
    bench = make_bench(optimizer=PLAIN, micro_batch=16)
    with worker_of(bench) as coordinator:
        coordinator.tell(assign((0, 40), is_open=True), Recall(generation=1, step=0, task=0))
        coordinator.tell(assign((0, 40), task=1, is_open=True))
        coordinator.hear(More)
        coordinator.tell(Reset(generation=2), assign((40, 50), task=2, generation=1))
        coordinator.tell(assign((0, 10), task=3, generation=2), assign((10, 10), task=4, generation=2))
        done = [coordinator.hear(Done), coordinator.hear(Done)]

    assert [(each.task, each.generation, each.samples) for each in done] == [(3, 2, 10), (4, 2, 0)]
    before = dense_of(bench)
    commit(bench)
    _, dense, _ = by_autograd(bench, bench.samples.read(0, 0, 10))
    np.testing.assert_allclose(before - dense_of(bench), dense, rtol=1e-3, atol=1e-4)


def test_in_a_ring_of_one_the_servers_get_no_dense_gradients(make_bench):
    bench = make_bench(optimizer=PLAIN, dense="ring")
    folder = str(checkpoints.newest(bench.folder))
    with worker_of(bench) as coordinator:
        coordinator.tell(JoinRing(generation=1, era=1, step=0, members=("worker-0",), source="", folder=folder))
        coordinator.hear(InRing)
        for step in (0, 1):
            coordinator.tell(assign((20 * step, 20 * step + 20), step=step))
            assert coordinator.hear(Reduced).step == step
            commit(bench)
            coordinator.tell(Apply(generation=1, step=step, scale=0.1, factor=1.0))
            done = coordinator.hear(Done)

    assert done.step == 1
    assert "reduce" in [span.kind for span in done.spans]  # of the step before


class Faulty(nn.Module):
    """Fails in its forward pass, once it trains."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, dense):
        return self.layer(dense.view(-1, 7) if self.training else dense)


def test_what_a_model_raises_ends_the_worker_and_its_threads_with_a_word_to_the_coordinator(make_bench):
    bench, failed, before = make_bench(own=Faulty()), [], set(threading.enumerate())

    def fail():
        with worker_of(bench, own=Faulty()) as coordinator:
            coordinator.tell(assign((0, 10)))
            failed.append(coordinator.hear(Failed))

    with pytest.raises(TrainingError, match="RuntimeError: shape"):
        fail()

    assert "RuntimeError" in failed[0].error
    assert "worker-0.log" in failed[0].hint
    left = set(threading.enumerate()) - before
    assert [each.name for each in left if each.name.startswith("dovetail-")] == []
