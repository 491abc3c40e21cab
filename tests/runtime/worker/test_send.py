"""Passing on: every micro-batch's gradients once, held ones with the last, a report when servers have all."""

import numpy as np
import pytest

from dovetail.runtime.worker.rows.keys import look_up
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.tasks.task import Task
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.worker.makers import assign, running

PLAIN = RunOptimizer(name="sgd", rows="sgd", learning_rate=1.0)


class Outbox:
    """A sender to a bench's shards, and what it reported."""

    def __init__(self, bench, *, wanted=lambda task: True):
        self.bench, self.done = bench, []
        self.sender = Sender(
            "worker-0", "worker-0/17", bench.lines(), wanted=wanted,
            tell=lambda message, counts: self.done.append((message, counts)),
        )  # fmt: skip

    def flush(self):
        """Send what was put."""
        self.sender.stop()
        with running(self.sender.run):
            pass


def make_task(**how):
    return Task(assign((0, 10), **how), closed=True, samples=10, loss=2.5)


def rows_of(bench, keys, value):
    """Return gradients of some keys of the first table, all of one value."""
    wanted = look_up(0, np.array(keys), bench.blueprint.num_servers)
    return [(wanted, np.full((len(wanted.keys), 4), value, dtype=np.float32))]


def values_of(bench, keys):
    """Return the rows of some keys as the servers hold them."""
    wanted = look_up(0, np.array(keys), bench.blueprint.num_servers)
    rows = bench.lines().pull(1, 0, [wanted], dense=False, wanted=lambda: True).rows[0]
    return rows[wanted.places]


def commit(bench):
    for shard in bench.shards:
        shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)


@pytest.mark.parametrize("servers", [1, 2])
def test_gradients_of_a_task_arrive_once_and_are_summed(make_bench, servers):
    bench = make_bench(servers=servers, optimizer=PLAIN)
    keys = [3, 5, 8, 9]
    before, size = values_of(bench, keys), bench.blueprint.dense_size
    dense_before = np.concatenate([shard.values for shard in bench.shards])
    out, task = Outbox(bench), make_task()
    out.sender.put(task, rows_of(bench, keys, 1.0))
    out.sender.put(task, [])  # a micro-batch that touched no row costs no message
    out.sender.put_last(task, rows_of(bench, keys[:2], 0.5), np.full(size, 2.0, np.float32), (np.arange(3),))
    out.flush()
    commit(bench)

    moved = before - values_of(bench, keys)
    np.testing.assert_allclose(moved, np.array([[1.5], [1.5], [1.0], [1.0]]) * np.ones(4), atol=1e-5)
    dense = np.concatenate([shard.values for shard in bench.shards])
    np.testing.assert_allclose(dense_before - dense, np.full(size, 2.0), atol=1e-5)
    ((done, counts),) = out.done
    assert (done.name, done.samples, done.loss, done.task) == ("worker-0", 10, 2.5, 0)
    assert done.fixed_s > 0
    assert [span.kind for span in done.spans] == ["send", "send"]
    assert counts[0].tolist() == [0, 1, 2]


def test_held_gradients_go_with_the_last_message(make_bench):
    bench = make_bench(optimizer=PLAIN)
    before = values_of(bench, [1])
    out, task = Outbox(bench), make_task()
    out.sender.hold(task, rows_of(bench, [1], 1.0))
    out.sender.put_last(task, None, None, ())
    out.flush()
    commit(bench)

    np.testing.assert_allclose(before - values_of(bench, [1]), np.ones((1, 4)), atol=1e-5)
    assert task.num_pushed == 1


def test_held_gradients_that_turned_out_not_to_be_the_last_are_released(make_bench):
    bench = make_bench(optimizer=PLAIN)
    before = values_of(bench, [1])
    out, task = Outbox(bench), make_task()
    out.sender.hold(task, rows_of(bench, [1], 1.0))
    out.sender.release(task)
    out.sender.put_last(task, rows_of(bench, [1], 2.0), None, ())
    out.flush()
    commit(bench)

    np.testing.assert_allclose(before - values_of(bench, [1]), np.full((1, 4), 3.0), atol=1e-5)
    assert task.num_pushed == 2


def test_what_was_held_of_an_abandoned_task_never_reaches_another(make_bench):
    bench = make_bench(optimizer=PLAIN)
    before = values_of(bench, [1, 2])
    out, old, new = Outbox(bench), make_task(task=0), make_task(task=1)
    out.sender.hold(old, rows_of(bench, [1], 1.0))
    out.sender.release(new)
    out.sender.put_last(new, None, None, ())
    out.flush()
    commit(bench)

    np.testing.assert_array_equal(values_of(bench, [1, 2]), before)
    assert [done.task for done, _ in out.done] == [1]


def test_gradients_of_a_task_that_is_not_wanted_stay_here(make_bench):
    bench = make_bench(optimizer=PLAIN)
    before = values_of(bench, [1])
    out = Outbox(bench, wanted=lambda task: task.assign.generation == 2)
    out.sender.put_last(make_task(generation=1), rows_of(bench, [1], 1.0), None, ())
    out.flush()
    commit(bench)

    np.testing.assert_array_equal(values_of(bench, [1]), before)
    assert out.done == []
