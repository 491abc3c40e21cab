"""A run that is cut, in this process: what comes of its stages is what one model does in one piece."""

import sys
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import (
    Apply,
    Collect,
    Collected,
    Done,
    Failed,
    Forward,
    Holds,
    InRing,
    JoinRing,
    Reduced,
    Reset,
    Saved,
    SaveDense,
    Stale,
    SumUp,
)
from dovetail.runtime.model.stages import cuts_of
from dovetail.runtime.process import Process
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.counting import slow_counting
from tests.runtime.worker.makers import assign
from tests.runtime.worker.staged import workers_of
from tests.runtime.worker.test_compute import by_autograd
from tests.transport.makers import answer_to, is_refused

PLAIN = RunOptimizer(name="sgd", rows="sgd", learning_rate=1.0)
TWO = RunModel(
    name="2emb", options={"num_rows": 240, "width": 4, "hidden": [16, 8], "small_hidden": 8, "small_rows": 7}
)


@pytest.fixture(autouse=True)
def settings_of_this_process():
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(threads)


def rows_of(bench):
    """Return all rows of every table."""
    keys = [np.arange(spec.num_rows) for spec in bench.blueprint.tables]
    return bench.shards[0].pull(range(len(keys)), keys, dense=False)


def assert_steps_of(changed, gradients):
    np.testing.assert_allclose(changed, gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("how", "lasts", "counts"),
    [({}, (0, 3), (1, 2, 1)), ({"model": TWO}, (3, 8), (1, 1, 1))],
    ids=["three stages", "tables in two stages and an output that skips one"],
)
def test_gradients_that_go_through_stages_are_those_of_the_whole(make_bench, how, lasts, counts, mode):
    bench = make_bench(optimizer=PLAIN, micro_batch=16, lasts=lasts, counts=counts, mode=mode, **how)
    before, rows_before = bench.shards[0].values.copy(), [each.copy() for each in rows_of(bench)]
    with workers_of(bench) as coordinator:
        coordinator.begin()
        coordinator.tell("stage-0", assign((0, 60)), assign((60, 90), task=1))
        done = [coordinator.hear(Done, "stage-0") for _ in range(2)]

    bench.shards[0].commit(scale=1.0, dense_scale=1.0, factor=1.0)
    loss, dense, rows = by_autograd(bench, bench.samples.read(0, 0, 90))
    assert [(each.task, each.samples) for each in done] == [(0, 60), (1, 30)]
    assert sum(each.loss for each in done) == pytest.approx(loss, rel=1e-5)
    assert all(len(each.stages_s) == 3 and min(each.stages_s) > 0 for each in done)
    assert_steps_of(before - bench.shards[0].values, dense)
    for one, after, gradients in zip(rows_before, rows_of(bench), rows, strict=True):
        assert_steps_of(one - after, gradients)


def test_each_stage_keeps_its_parameters_and_all_of_them_step_as_the_whole(make_bench, tmp_path):
    bench = make_bench(optimizer=PLAIN, micro_batch=16, lasts=(0, 3), counts=(1, 2, 1), dense="ring")
    begun = checkpoints.newest(bench.folder)
    before, _ = checkpoints.load_dense(begun, checkpoints.RunManifest.read(begun))
    loss, dense, _ = by_autograd(bench, bench.samples.read(0, 0, 60))
    with workers_of(bench) as coordinator:
        coordinator.begin()
        for name in coordinator.of_stage(1):
            assert coordinator.hear(Holds, name).version == -1
        for stage in (1, 2):  # the first has tables alone
            coordinator.form(stage)
        coordinator.tell("stage-0", assign((0, 60)))
        assert coordinator.hear(Done, "stage-0").loss == pytest.approx(loss, rel=1e-5)
        coordinator.sum_up(1)
        for name in coordinator.of_stage(1):
            assert coordinator.hear(Reduced, name).step == 0
        coordinator.apply()  # the last stage has one worker: what it computed is the sum

        coordinator.tell("stage-0", assign((60, 80), step=1))
        coordinator.hear(Done, "stage-0")
        folder = tmp_path / "partial"
        folder.mkdir()
        files = {}
        for name in ("stage-1-0", "stage-2"):
            coordinator.tell(name, SaveDense(generation=1, number=1, step=1, folder=str(folder)))
            files |= coordinator.hear(Saved, name).files

    assert sorted(files) == ["dense-1.safetensors", "dense-2.safetensors"]
    after = np.concatenate([load_file(folder / name)["values"] for name in sorted(files)])
    assert_steps_of(before - after, dense)


def test_a_call_to_the_next_ring_that_comes_while_the_last_one_breaks_is_followed(make_bench):
    bench = make_bench(optimizer=PLAIN, lasts=(1,), counts=(1, 2), dense="ring")
    with workers_of(bench, only=["stage-1-0", "stage-1-1"]) as coordinator:
        coordinator.begin()
        coordinator.form(1)
        coordinator.tell("stage-1-0", SumUp(generation=1, step=0))  # and the other is never told
        time.sleep(0.3)  # it waits for the other by now
        folder = str(checkpoints.newest(bench.folder))
        ring = JoinRing(generation=2, era=1, step=0, members=("stage-1-0",), source="", folder=folder)
        coordinator.tell("stage-1-0", Reset(generation=2), ring)
        joined = coordinator.hear(InRing, "stage-1-0")

    assert (joined.generation, joined.version) == (2, 0)


def test_a_worker_that_is_not_in_the_ring_computes_nothing(make_bench):
    bench = make_bench(optimizer=PLAIN, micro_batch=16, lasts=(1,), counts=(1, 2), dense="ring")
    with workers_of(bench) as coordinator:
        coordinator.begin()
        coordinator.form(1)
        for name in ("stage-1-0", "stage-1-1"):  # a generation in whose ring only one has a place
            coordinator.tell(name, Reset(generation=2))
        folder = str(checkpoints.newest(bench.folder))
        alone = {"generation": 2, "era": 1, "step": 0, "source": "", "folder": folder}
        coordinator.tell("stage-1-0", JoinRing(**alone, members=("stage-1-0",)))
        coordinator.hear(InRing, "stage-1-0")
        coordinator.tell("stage-0", Reset(generation=2, stages=(("stage-1-1",),)))
        coordinator.tell("stage-0", assign((0, 10), generation=2))
        with pytest.raises(AssertionError, match="no Done"):
            coordinator.hear(Done, "stage-0", timeout_s=0.5)
        coordinator.tell("stage-1-1", JoinRing(**alone, members=("stage-1-1",)))

        assert coordinator.hear(Done, "stage-0").samples == 10


def test_what_was_under_way_when_a_generation_ended_leaves_nothing(make_bench):
    bench = make_bench(
        model=slow_counting(0.06, has_middle=True), optimizer=PLAIN, micro_batch=10, reduction="sum",
        lasts=(0, 1), counts=(1, 1, 1),
    )  # fmt: skip
    with workers_of(bench) as coordinator:
        coordinator.begin()
        coordinator.tell("stage-0", assign((0, 60)))
        with pytest.raises(AssertionError, match="no Done"):
            coordinator.hear(Done, "stage-0", timeout_s=0.5)
        coordinator.begin(2)
        coordinator.tell("stage-0", assign((60, 70), task=1, generation=2))
        done = coordinator.hear(Done, "stage-0")

    before = bench.shards[0].values.copy()
    bench.shards[0].commit(scale=1.0, dense_scale=1.0, factor=1.0)
    assert (done.task, done.samples) == (1, 10)
    np.testing.assert_array_equal(bench.shards[0].values - before, [40.0, 10.0])  # slots, samples


def test_requests_that_a_stage_cannot_answer_are_refused(make_bench):
    bench = make_bench(optimizer=PLAIN, lasts=(1,), counts=(1, 1))
    (spec,) = bench.blueprint.stages[1].workers
    head = Process(bench.folder, "stage-0")
    cut = cuts_of(bench.graph, bench.blueprint)[1]
    inputs = cut.inputs[0]
    arrays = [np.zeros((2, 1), dtype=np.float32)] * len(inputs)
    good = {
        "generation": 3, "step": 0, "task": 0, "head": "stage-0/1", "flight": 1, "sender": 0, "route": ("stage-1",),
        "samples": 2, "outputs": inputs,
    }  # fmt: skip
    with workers_of(bench, only=["stage-1"]) as coordinator:
        coordinator.tell("stage-1", Reset(generation=3))
        line = head.call(spec)
        collect = Collect(generation=3, step=0, task=0, head="stage-0/1")
        nothing = answer_to(line, collect)
        refused = {
            "sends nothing": (Forward(**good | {"sender": 7}), arrays),
            "does not read wrong": (Forward(**good | {"outputs": ("wrong",)}), arrays),
            "arrays came for": (Forward(**good), arrays[1:]),
            "a route through 2 stages of 1": (Forward(**good | {"route": ("a", "b")}), arrays),
            "in the name of": (Forward(**good | {"head": "stage-1/1"}), arrays),
            "is not for it to say": (Apply(generation=3, step=0, scale=1.0, factor=1.0), ()),
        }
        for words, (message, sent) in refused.items():
            assert is_refused(answer_to(line, message, sent), words), words
        old = answer_to(line, Forward(**good | {"generation": 2}), arrays)
        line.close()

    assert isinstance(nothing.message, Collected)
    assert nothing.arrays == ()
    assert old.message == Stale(generation=3)


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (RunModel(name="tests.runtime.worker.faulty:broken_loss"), "the loss is nan on stage-1 at step 0"),
        (RunModel(name="tests.runtime.worker.faulty:raising"), "RuntimeError: it cannot be computed"),
    ],
    ids=["a loss that is no number", "an error"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_goes_wrong_in_a_stage_ends_it_with_a_word_to_the_coordinator(make_bench, model, error):
    bench, failed = make_bench(model=model, lasts=(0,), counts=(1, 1)), []

    def fail():
        with workers_of(bench) as coordinator:
            coordinator.begin()
            coordinator.tell("stage-0", assign((0, 10)))
            failed.append(coordinator.hear(Failed, "stage-1"))

    with pytest.raises(Exception, match=error.removeprefix("RuntimeError: ")):
        fail()

    assert error in failed[0].error
    assert failed[0].hint
