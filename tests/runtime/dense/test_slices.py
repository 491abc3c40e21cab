"""Dense gradients in slices, pushed while the backward pass goes on, end where one process ends."""

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.models.load import load_model
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.buckets import buckets_of, is_bucketed
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.server.gradients import StepSums, TaskPart
from dovetail.spec.run import RunWorker
from dovetail.spec.run_sections import RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.many_kills import ADAM, counting_run, went_back
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAM as STEADY_ADAM
from tests.runtime.runs import assert_same_state, clicks, last_state, make_run, train
from tests.runtime.test_equality import assert_equals

UNEVEN = [RunWorker(name="a", share=0.7), RunWorker(name="b")]


@pytest.mark.parametrize(
    ("servers", "workers", "training"),
    [(1, UNEVEN, {"micro_batch": 50, "tail": 0.3}), (2, 2, {"tail": 0.0})],
)
def test_a_run_in_slices_ends_where_one_process_ends(tmp_path, servers, workers, training):
    run = make_run(
        samples=1950,
        servers=servers,
        workers=workers,
        optimizer=STEADY_ADAM,
        slice_bytes=100,
        **training,
    )

    train(run, tmp_path / "run")

    source = clicks(num_samples=1950)
    alone = OneProcess(run, load_model("ctr-dnn", seed=3, schema=source.schema, **run.model.options), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


@pytest.mark.parametrize("servers", [1, 3])
def test_slices_are_all_of_every_servers_part(tmp_path, servers):
    blueprint = prepare(make_run(servers=servers, slice_bytes=64), tmp_path)
    remove_private_folder(blueprint.private_folder)
    found = buckets_of(blueprint)

    assert [each.first for each in found[1:]] == [each.last for each in found[:-1]]
    assert (found[0].first, found[-1].last) == (0, blueprint.dense_size)
    for each in found:
        part = blueprint.dense_slice(each.server)
        assert part.start + each.begins == each.first < each.last <= part.stop
        assert each.last - each.first <= 16


@pytest.mark.parametrize("how", [{"slice_bytes": 0}, {"slice_bytes": 1 << 20}, {"mode": "async", "slice_bytes": 8}])
def test_what_does_not_pay_goes_in_one_piece(tmp_path, how):
    blueprint = prepare(make_run(**how), tmp_path)
    remove_private_folder(blueprint.private_folder)

    assert not is_bucketed(blueprint)
    assert not buckets_of(blueprint)


def sums_of(*, sliced=True):
    return StepSums([1], 6, sliced=sliced)


def push(sums, task, worker, part, numbers, first, *, last=False):
    """Push a slice of a task's gradients."""
    dense = None if numbers is None else np.array(numbers, dtype=np.float32)
    return sums.push(TaskPart(0, task, worker, part, dense=dense, last=last, first=first))


def test_of_two_attempts_the_one_counts_that_is_whole_first():
    sums = sums_of()
    push(sums, 0, "a", 0, [1, 1, 1], 3)
    push(sums, 1, "c", 0, [5, 5, 5, 5, 5, 5], -1, last=True)
    push(sums, 0, "b", 0, [2, 2, 2], 0)
    push(sums, 0, "b", 1, [2, 2, 2], 3)
    assert list(sums.dense) == [5, 5, 5, 6, 6, 6]  # those of the first attempt so far

    assert push(sums, 0, "b", 2, None, -1, last=True)

    assert list(sums.dense) == [7] * 6
    assert sums.dense_square() == 6 * 49


def test_an_attempt_that_begins_anew_or_comes_to_nothing_leaves_no_gradients():
    sums = sums_of()
    push(sums, 0, "a", 0, [1, 1, 1], 3)
    push(sums, 0, "a", 0, [2, 2, 2], 0)
    assert list(sums.dense) == [2, 2, 2, 0, 0, 0]

    sums.rows()

    assert list(sums.dense) == [0] * 6


def test_slices_that_are_not_all_of_it_are_refused():
    sums = sums_of()
    push(sums, 0, "a", 0, [1, 1, 1], 3)
    with pytest.raises(TrainingError, match="not all"):
        push(sums, 0, "a", 1, None, -1, last=True)
    with pytest.raises(TrainingError, match="in one piece"):
        push(sums_of(sliced=False), 0, "a", 0, [1, 1, 1], 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_kills_a_run_in_slices_is_bit_equal_to_one_without_kills(tmp_path):
    over = tmp_path / "over"
    how = {"servers": 1, "samples": 6000, "optimizer": ADAM, "slice_bytes": 4, "checkpoint": RunSaving(every_s=2.0)}
    options = {"until": over, "seconds": 60}
    chaos = Chaos(kills=4, seed=3, names=["server-0", "worker-0", "worker-1"], pause_s=1.5, over=over)
    run = counting_run(**how, **options)
    run = replace(run, model=replace(run.model, options=run.model.options | {"has_middle": True}))

    local = train(run, tmp_path / "killed", meanwhile=chaos, timeout_s=300)
    train(run, tmp_path / "whole")

    assert is_bucketed(Blueprint.read(tmp_path / "whole"))
    assert len(chaos.killed) == 4
    assert went_back(local) == []
    assert_same_state(last_state(tmp_path / "killed"), last_state(tmp_path / "whole"))
