"""The line to the coordinator, over a real socket with keys."""

import time

import numpy as np
import pytest

from dovetail.runtime import process as processes
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Alive, Close, Done, Failed, Hello, RanOut, Stop, WhoAreYou
from dovetail.runtime.process import Process
from dovetail.runtime.worker.control import Control
from tests.runtime.worker.makers import Bench, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("control") / "run")
    yield bench.folder
    bench.close()


@pytest.fixture
def coordinator(folder):
    process = Process(folder, "coordinator")
    listener = process.listen([process.blueprint.coordinator.local_address])
    yield listener
    listener.close()


def make_control(folder, handle=lambda message: None):
    return Control(Process(folder, "worker-0"), handle, lambda: 7, lambda: 123)


def next_of(listener, kind, timeout_s=60.0):
    """Return the next envelope with a message of some kind."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        envelope = listener.receive(0.1)
        if envelope is not None and isinstance(envelope.message, kind):
            return envelope
    raise AssertionError(f"no {kind.__name__} came")


def test_a_worker_says_who_it_is_and_then_that_it_lives(folder, coordinator):
    control = make_control(folder)
    with running(control.run):
        hello = next_of(coordinator, Hello)
        alive = next_of(coordinator, Alive)
        coordinator.send(hello.sender, WhoAreYou())
        again = next_of(coordinator, Hello)
        coordinator.send(hello.sender, Stop())

    assert (hello.message.role, hello.message.name, hello.message.generation) == ("worker", "worker-0", 7)
    assert (hello.message.most_samples, alive.message.most_samples) == (123, 123)
    assert again.message == hello.message
    assert control.stopped.is_set()
    assert control.problem is None


def test_messages_go_both_ways_with_their_arrays(folder, coordinator):
    heard = []
    control = make_control(folder, heard.append)
    done = Done(
        name="worker-0", generation=7, step=1, task=2, samples=3, loss=0.5, compute_s=0.1, fixed_s=0.1, wait_s=0.0
    )
    with running(control.run):
        sender = next_of(coordinator, Hello).sender
        control.tell(done, (np.arange(4),))
        envelope = next_of(coordinator, Done)
        close = Close(generation=7, step=1, task=2)
        coordinator.send(sender, Alive(name="coordinator"))
        coordinator.send(sender, close)
        coordinator.send(sender, Stop())

    assert envelope.message == done
    assert envelope.arrays[0].tolist() == [0, 1, 2, 3]
    assert heard == [close]


def test_signs_of_life_and_reports_leave_nothing_to_wait_for(folder, coordinator, monkeypatch):
    monkeypatch.setattr("dovetail.runtime.worker.control.HEARTBEAT_S", 0.0)
    control = make_control(folder)
    with running(control.run):
        sender = next_of(coordinator, Hello).sender
        for _ in range(100):
            control.tell(RanOut(generation=7))
        for _ in range(100):
            next_of(coordinator, RanOut)
        next_of(coordinator, Alive)
        awaited = len(control._connection._awaited)
        coordinator.send(sender, Stop())

    assert awaited == 0


def test_what_goes_wrong_is_told_before_the_line_closes(folder, coordinator):
    control = make_control(folder)
    with running(control.run):
        next_of(coordinator, Hello)
        control.fail(TrainingError("it broke", hint="mend it"))
        control.fail(TrainingError("it broke again", hint=""))
        failed = next_of(coordinator, Failed).message
    control.tell(RanOut(generation=7))  # by a thread that has not heard of it yet: nothing happens

    assert (failed.error, failed.hint) == ("it broke", "mend it")
    assert str(control.problem) == "it broke"


def test_a_coordinator_that_is_silent_for_too_long_ends_the_worker(folder, coordinator, monkeypatch):
    monkeypatch.setattr(processes, "COORDINATOR_PATIENCE_S", 0.3)
    control = make_control(folder)
    with running(control.run):
        pass

    assert "the coordinator has been silent" in str(control.problem)
    assert control.stopped.is_set()
