"""The parts of a worker of a later stage, each on its own."""

import threading
import time

import numpy as np
import pytest
import torch
import zmq

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Apply, Collect, Collected, Forward, JoinRing, Stale
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.stages import Cut, cuts_of
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.control import Waker
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.stages.batches import StageBatch, StageBatches, concatenated
from dovetail.runtime.worker.stages.compute import StageRing, TaskSums
from dovetail.runtime.worker.stages.requests import StageRequests, is_stale
from dovetail.spec.run_sections import RunOptimizer
from dovetail.transport import Envelope
from tests.runtime.worker.makers import CPU
from tests.transport.makers import serving

HEAD = "stage-0/1"


def forward(*, flight=1, sender=0, step=0, task=0, head=HEAD, samples=2, generation=1):
    return Forward(
        generation=generation, step=step, task=task, head=head, flight=flight, sender=sender, route=("stage-1",),
        samples=samples,
    )  # fmt: skip


def letter_of(message):
    return Envelope(sender=b"", request=1, message=message)


# -- micro-batches -----------------------------------------------------------------------------------------------------


def cut_with(*senders):
    inputs = {sender: (f"of-{sender}",) for sender in senders}
    return Cut(3, 3, 3, (), inputs, {}, slice(0, 0), frozenset())


def test_a_micro_batch_is_ready_when_every_stage_that_it_reads_has_sent_its_part():
    visits = StageBatches(cut_with(0, 2))
    visit = visits.add(letter_of(forward(sender=2)))
    assert visits.ready(lambda message: True) is None
    assert visits.add(letter_of(forward(sender=0))) is visit

    assert visits.ready(lambda message: message.step > 0) is None  # its step's parameters are not here
    assert visits.ready(lambda message: True) is visit
    visits.remove(visit)
    assert visits.ready(lambda message: True) is None


class Answer:
    envelope = None


def test_backward_passes_come_before_forward_passes_that_came_earlier():
    visits = StageBatches(cut_with(0))
    first, second = visits.add(letter_of(forward(flight=1))), visits.add(letter_of(forward(flight=2)))
    call = Answer()
    second.requests[4] = call
    assert visits.ready(lambda message: True) is first
    call.envelope = letter_of(None)

    assert visits.ready(lambda message: True) is second
    visits.clear()
    assert visits.ready(lambda message: True) is None


def visit_of(*, flight, samples=2, width=3, step=0):
    visit = StageBatch(forward(flight=flight, samples=samples, step=step))
    visit.inputs["of-0"] = torch.full((samples, width), float(flight)).requires_grad_()
    visit.fields["labels"] = torch.full((samples,), flight)
    return visit


def test_micro_batches_that_are_alike_are_computed_as_one_up_to_a_limit():
    visits = StageBatches(cut_with(0))
    for flight, how in enumerate([{}, {}, {"width": 5}, {"step": 1}, {"samples": 9}, {}], 1):
        made = visit_of(flight=flight, **how)
        visit = visits.add(letter_of(made.message))
        visit.inputs, visit.fields = made.inputs, made.fields
    first = visits.ready(lambda message: True)

    found = visits.ready_with(first, lambda message: True, most_samples=6)
    whole = concatenated(found)

    assert [visit.message.flight for visit in found] == [1, 2, 6]
    assert whole.fields["labels"].tolist() == [1, 1, 2, 2, 6, 6]
    assert whole.inputs["of-0"][:, 0].tolist() == [1, 1, 2, 2, 6, 6]
    assert whole.inputs["of-0"].requires_grad
    assert concatenated([first]) is first


def test_what_is_not_one_entry_a_sample_is_computed_on_its_own():
    one, other = visit_of(flight=1), visit_of(flight=2)
    assert one.is_like(other)
    one.fields["offsets"], other.fields["offsets"] = torch.arange(9), torch.arange(9)

    assert not one.is_like(other)


def test_what_stages_took_for_a_micro_batch_adds_up():
    visit = StageBatch(forward())
    visit.took((0.0, 1.0))
    visit.took((0.0, 0.5, 2.0))

    assert visit.stages_s == (0.0, 1.5, 2.0)


# -- dense parameters --------------------------------------------------------------------------------------------------


def stage_of(bench, number=1):
    """Return a stage's model and its cut."""
    graph = build_model(bench.run, bench.source.schema)
    cut = cuts_of(graph, bench.blueprint)[number]
    return ServedModel(graph, BatchRows(1, CPU), CPU, only=cut.names), cut


@pytest.fixture
def make_sums(make_bench):
    bench = make_bench(lasts=(1,), counts=(1, 1), optimizer=RunOptimizer(name="sgd", learning_rate=1.0))

    def make(*, sync):
        model, cut = stage_of(bench)
        return TaskSums(model, cut, bench.lines(), sync=sync), model, cut, bench

    return make


def test_in_sync_parameters_are_fetched_once_a_step(make_sums):
    sums, model, cut, bench = make_sums(sync=True)
    for step, task, expected in ((0, 0, 1.0), (0, 1, 1.0), (1, 0, 2.0)):
        bench.shards[0].values[:] = 1.0 + step + task  # a second task of a step does not look
        bench.shards[0].version = step
        assert sums.are_there(forward(step=step, task=task))
        sums.prepare(forward(step=step, task=task), lambda: True)
        assert model.values.tolist() == [expected] * (cut.dense.stop - cut.dense.start)


def test_without_steps_parameters_are_fetched_for_every_task_and_every_generation(make_sums):
    sums, model, _, bench = make_sums(sync=False)
    seen = []
    for number, task in enumerate((0, 0, 1), 1):
        bench.shards[0].values[:] = number
        sums.prepare(forward(task=task), lambda: True)
        seen.append(float(model.values[0]))
    bench.shards[0].values[:] = 4
    sums.begin_generation()
    sums.prepare(forward(task=1), lambda: True)

    assert [*seen, float(model.values[0])] == [1.0, 1.0, 3.0, 4.0]


def test_gradients_of_tasks_that_take_turns_add_up_apart(make_sums):
    sums, model, _, _ = make_sums(sync=True)
    ours, theirs = (0, 0, "a/1"), (0, 1, "b/1")
    for task, amount in ((ours, 1.0), (theirs, 10.0), (ours, 2.0), (ours, 4.0), (theirs, 20.0)):
        sums.add_up(task)
        model.gradients += amount

    assert float(sums.take_sum(ours)[0]) == 7.0
    assert sums.take_sum(ours) is None
    assert float(sums.take_sum(theirs)[0]) == 30.0
    assert float(model.gradients.abs().sum()) == 0.0


def test_what_a_worker_never_asked_for_goes_when_it_is_at_another_task(make_sums):
    sums, model, _, _ = make_sums(sync=True)
    sums.add_up((0, 0, "a/1"))
    model.gradients += 1.0
    sums.add_up((1, 0, "a/1"))
    model.gradients += 2.0

    assert sums.take_sum((0, 0, "a/1")) is None
    assert float(sums.take_sum((1, 0, "a/1"))[0]) == 2.0
    sums.add_up((1, 1, "a/1"))
    model.gradients += 1.0
    sums.begin_generation()
    assert sums.take_sum((1, 1, "a/1")) is None
    assert float(model.gradients.abs().sum()) == 0.0


def test_a_stages_ring_has_parameters_for_its_own_generation_up_to_its_step(make_bench):
    bench = make_bench(lasts=(1,), counts=(1, 1), dense="ring", optimizer=RunOptimizer(name="sgd", learning_rate=1.0))
    model, cut = stage_of(bench)
    told = []
    sync = RingSync(Process(bench.folder, "stage-1"), model, told.append, part=cut.dense, stage=1)
    ring = StageRing(sync, model)
    folder = str(checkpoints.newest(bench.folder))
    sync.reset(1)
    assert not ring.are_there(forward())
    sync.handle(JoinRing(generation=1, era=1, step=0, members=("stage-1",), source="", folder=folder))
    sync.catch_up(lambda generation: True)
    assert ring.are_there(forward())
    assert not ring.are_there(forward(step=1))

    before = model.values.clone()
    ring.prepare(forward(), lambda: True)
    ring.add_up((0, 0, HEAD))
    model.gradients += 1.0
    assert ring.take_sum((0, 0, HEAD)) is None
    sync.handle(Apply(generation=1, step=0, scale=0.5, factor=1.0))
    torch.testing.assert_close(model.values, before - 0.5)
    assert ring.are_there(forward(step=1))

    sync.reset(2)  # it holds the step, and nobody counts on it before it is in the next ring
    assert not ring.are_there(forward(step=1, generation=2))
    model.gradients += 1.0
    ring.begin_generation()
    assert float(model.gradients.abs().sum()) == 0.0


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage_line(make_bench):
    """Return calls to a worker of the second stage, and where it listens."""
    bench = make_bench(lasts=(1,), counts=(1, 1))
    calls = StageRequests(Process(bench.folder, "stage-0"), "test", dense_size=1000)
    stage = Process(bench.folder, "stage-1")
    (spec,) = bench.blueprint.stages[1].workers
    yield calls, stage.listen([spec.local_address])
    calls.close()


def answers(calls, *, timeout_s=60.0):
    """Return the next answers."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := calls.answered(0.05)):
        assert time.monotonic() < deadline_s, "no answer"
    return found


def collect(task):
    return Collect(generation=1, step=0, task=task, head=HEAD)


def test_several_requests_are_under_way_and_each_gets_its_own_answer(stage_line):
    calls, listener = stage_line
    big = np.arange(50_000, dtype=np.float32)
    with serving(listener, lambda envelope: (Collected(), [np.full_like(big, envelope.message.task)])):
        asked = [calls.ask("stage-1", collect(task), [big]) for task in range(3)]
        found = []
        while len(found) < 3:
            found += answers(calls)
        for task, call in enumerate(asked):
            assert call in found
            np.testing.assert_array_equal(call.envelope.arrays[0], np.full_like(big, task))
        lines = {call.connection for call in asked}
        for call in asked:
            calls.end(call)
            calls.end(call)  # as often as one likes
        again = calls.ask("stage-1", collect(4))

        assert again.connection in lines  # lines are used again
        assert answers(calls) == [again]
        assert not is_stale(again)


def test_an_answer_that_nobody_wants_any_more_goes_nowhere(stage_line):
    calls, listener = stage_line
    may_answer = threading.Event()

    def answer(envelope):
        assert may_answer.wait(60)
        return Stale(generation=envelope.message.task), ()

    with serving(listener, answer):
        first = calls.ask("stage-1", collect(1))
        calls.give_up()
        second = calls.ask("stage-1", collect(2))
        may_answer.set()

        assert second.connection is first.connection
        assert answers(calls) == [second]
        assert is_stale(second)
        assert second.envelope.message.generation == 2
        assert first.envelope is None


def test_a_request_that_is_refused_ends_the_worker(stage_line):
    calls, listener = stage_line
    calls.ask("stage-1", collect(1))
    envelope = listener.receive(60)
    listener.refuse(envelope, "it makes no sense")

    with pytest.raises(TrainingError, match="stage-1 refused a request: it makes no sense"):
        answers(calls)
    listener.close()


# -- waking ------------------------------------------------------------------------------------------------------------


def test_a_waker_wakes_whoever_polls_until_it_is_cleared():
    waker = Waker()
    poller = zmq.Poller()
    poller.register(waker.socket, zmq.POLLIN)
    assert poller.poll(0) == []
    thread = threading.Thread(target=lambda: [waker.wake(), waker.wake()])
    thread.start()

    assert poller.poll(60_000)
    thread.join()
    waker.clear()
    assert poller.poll(0) == []
    waker.close()
    waker.wake()  # nobody is there to be woken
