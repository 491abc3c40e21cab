"""A shard under attempts in any order: each task counts once, by the first attempt that is whole."""

import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.server.shard import Shard
from tests.runtime.counting import COUNTING, PLAIN
from tests.runtime.runs import NUM_ROWS, make_run

KEYS = np.arange(NUM_ROWS)


@pytest.fixture
def make_shard(tmp_path):
    made = []

    def make(mode):
        folder = tmp_path / f"run-{len(made)}"
        blueprint = prepare(make_run(model=COUNTING, optimizer=PLAIN, reduction="sum", mode=mode), folder)
        shard = Shard(blueprint, 0, folder / "rows")
        shard.load(checkpoints.newest(folder))
        made.append(shard)
        return shard

    yield make
    for shard in made:
        shard.close()


def values_of(shard):
    """Return the values of all rows, without updating any that nobody asked for."""
    return shard.pull((0,), (KEYS,), dense=False)[0][:, 0].copy()


def parts_of(draw, task):
    """Return the gradients of a task in parts: the same for every attempt at it, cut differently."""
    keys = np.random.default_rng(task).choice(NUM_ROWS, size=20, replace=False)
    cuts = np.sort(draw.integers(0, 21, size=draw.integers(0, 3)))
    return np.split(keys, cuts), keys


@pytest.mark.parametrize("seed", range(5))
def test_in_sync_a_step_is_the_sum_of_its_tasks_whoever_tried_them(make_shard, seed):
    draw = np.random.default_rng(seed)
    shard = make_shard("sync")
    expected = values_of(shard)
    for step in range(4):
        attempts = []
        for task in range(5):
            whole = draw.integers(1, 4)
            for attempt in range(3):  # the first so many attempts get to their end, the others stop in the middle
                parts, keys = parts_of(draw, 100 * step + task)
                attempts.append([task, f"worker-{attempt}", parts, 0, attempt < whole])
            expected[keys] += 1
        while attempts:
            entry = attempts[draw.integers(len(attempts))]
            task, worker, parts, number, gets_there = entry
            last = number == len(parts) - 1
            if last and not gets_there:
                attempts.remove(entry)
                continue
            if number and draw.random() < 0.1:
                entry[3] = number = 0  # it begins again
                last = len(parts) == 1
            keys = parts[number]
            rows = [(0, keys, -np.ones((len(keys), 1), dtype=np.float32))]
            dense = -np.ones(1, dtype=np.float32) if last else None
            shard.push(TaskPart(step, task, worker, number, rows, dense, last=last))
            entry[3] += 1
            if last:
                attempts.remove(entry)
        shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)
        if draw.random() < 0.5:
            np.testing.assert_allclose(values_of(shard), expected, atol=1e-5)

    np.testing.assert_allclose(values_of(shard), expected, atol=1e-5)
    assert shard.values.tolist() == [20.0]
    assert shard.version == 4


def test_a_task_that_comes_late_is_not_applied_again_after_a_checkpoint(make_shard):
    shard = make_shard("async")
    before = values_of(shard)
    gradients = [(0, np.array([3, 5]), -np.ones((2, 1), dtype=np.float32))]
    how = {"scale": 1.0, "factor": 1.0}

    assert shard.apply(TaskPart(0, 0, "worker-0", rows=gradients), **how)
    assert shard.apply(TaskPart(0, 1, "worker-1", rows=gradients), **how)
    shard.forget_tasks(below=2)
    assert not shard.apply(TaskPart(0, 0, "worker-1", rows=gradients), **how)
    assert not shard.apply(TaskPart(0, 1, "worker-0", rows=gradients), **how)
    assert shard.apply(TaskPart(0, 2, "worker-0", rows=gradients), **how)

    grown = values_of(shard) - before
    assert grown[[3, 5]] == pytest.approx([3.0, 3.0])


def test_a_newer_task_that_comes_before_the_checkpoint_does_not_make_those_between_count_as_done(make_shard):
    shard = make_shard("async")
    gradients = [(0, np.array([3, 5]), -np.ones((2, 1), dtype=np.float32))]
    how = {"scale": 1.0, "factor": 1.0}

    assert shard.apply(TaskPart(0, 0, "worker-0", rows=gradients), **how)
    assert shard.apply(TaskPart(0, 3, "worker-1", rows=gradients), **how)
    shard.forget_tasks(below=1)  # the coordinator knew of one when it cut
    assert shard.apply(TaskPart(0, 1, "worker-0", rows=gradients), **how)
    assert shard.apply(TaskPart(0, 2, "worker-2", rows=gradients), **how)
    assert not shard.apply(TaskPart(0, 3, "worker-0", rows=gradients), **how)


def test_a_part_without_those_before_it_is_refused(make_shard):
    shard = make_shard("sync")
    rows = [(0, np.array([1]), np.ones((1, 1), dtype=np.float32))]

    with pytest.raises(TrainingError, match="part 1 of task 7"):
        shard.push(TaskPart(0, 7, "worker-0", 1, rows))


BAD_KEYS = {
    "float": (0, KEYS.astype(np.float32)),
    "narrow": (0, KEYS.astype(np.int32)),
    "square": (0, KEYS.reshape(-1, 2)),
    "negative": (0, np.array([0, -1])),
    "beyond": (0, np.array([0, NUM_ROWS])),
    "no such table": (1, KEYS),
    "from the end": (-1, KEYS),
}


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_a_pull_that_makes_no_sense_leaves_the_updates_that_are_due(make_shard, kind):
    shard = make_shard("sync")
    before = values_of(shard)
    ones = np.ones((NUM_ROWS, 1), dtype=np.float32)
    shard.push(TaskPart(0, 0, "worker-0", rows=[(0, KEYS, ones)]))
    shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)
    table, keys = BAD_KEYS[kind]
    with pytest.raises(TrainingError):
        shard.pull((table,), (keys,), dense=False)
    with pytest.raises(TrainingError):
        shard.pull((0, 0), (KEYS,), dense=False)

    np.testing.assert_array_equal(values_of(shard), before - 1)


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_a_push_that_makes_no_sense_is_refused(make_shard, kind):
    table, keys = BAD_KEYS[kind]

    with pytest.raises(TrainingError):
        make_shard("sync").check(TaskPart(0, 0, "w", rows=[(table, keys, np.ones((len(keys), 1), dtype=np.float32))]))


@pytest.mark.parametrize("seed", range(5))
def test_rows_fetched_early_and_refreshed_are_the_rows_after_the_step(make_shard, seed):
    draw = np.random.default_rng(seed)
    shard = make_shard("sync")
    for step in range(6):
        wanted = draw.permutation(NUM_ROWS)[: draw.integers(1, NUM_ROWS)]
        early, since = shard.pull((0,), (wanted,), dense=False)[0].copy(), shard.version
        keys = draw.choice(NUM_ROWS, size=25, replace=False)
        gradients = -np.ones((len(keys), 1), dtype=np.float32)
        shard.push(TaskPart(step, 0, "worker-0", rows=[(0, keys, gradients)]))
        shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)
        for _ in range(draw.integers(0, 3)):
            shard.settle_some(7)  # some of it is applied when the refresh comes, or all of it

        places, rows = shard.refresh((0,), (wanted,), since=since, dense=False)

        early[places] = rows
        assert set(wanted[places]) == set(wanted) & set(keys)
        np.testing.assert_array_equal(early[:, 0], values_of(shard)[wanted])


def test_whoever_is_more_than_a_step_behind_gets_all_rows_again(make_shard):
    shard = make_shard("sync")
    for step in range(2):
        gradients = -np.ones((1, 1), dtype=np.float32)
        shard.push(TaskPart(step, 0, "w", rows=[(0, KEYS[step : step + 1], gradients)]))
        shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)

    assert list(shard.refresh((0,), (KEYS[:5],), since=0, dense=False)[0]) == [0, 1, 2, 3, 4]
    assert list(shard.refresh((0,), (KEYS[:5],), since=1, dense=False)[0]) == [1]
    assert list(shard.refresh((0,), (KEYS[:5],), since=2, dense=False)[0]) == []
