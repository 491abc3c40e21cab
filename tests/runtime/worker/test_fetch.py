"""Getting inputs: samples in the order of the epoch, rows as the servers hold them, dense parameters once a task."""

import time

import numpy as np
import pytest

from dovetail.data.loader import Loader
from dovetail.embedding.hashing import first_values
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import table_seed
from dovetail.runtime.worker.dense.sync import ServerSync
from dovetail.runtime.worker.fetch import AHEAD, Fetcher, ahead
from dovetail.runtime.worker.tasks.task import MicroBatch, Task
from tests.runtime.worker.makers import assign, micro_batch, running


def make_fetcher(bench, *, wanted=lambda task: True, dense=True):
    sync = ServerSync(bench.model)
    sync.is_fetched = dense
    return Fetcher(bench.blueprint, bench.samples, bench.model, bench.lines(), sync, wanted=wanted)


def fetch(fetcher, micro_batch):
    return fetcher.fetch(fetcher.read(micro_batch))


def test_samples_come_in_the_order_of_the_epoch(make_bench):
    bench = make_bench()
    loader = Loader(
        bench.source, batch_size=400, seed=bench.run.training.seed, block_samples=64, num_samples=400, shuffle=True
    )
    (whole,) = loader

    fetched = fetch(make_fetcher(bench), micro_batch(30, 50))

    assert fetched.batch.sample_ids.tolist() == whole.sample_ids[30:50].tolist()
    assert fetched.batch.labels.tolist() == whole.labels[30:50].tolist()


@pytest.mark.parametrize("servers", [1, 2])
def test_rows_are_those_of_the_servers_each_key_once(make_bench, servers):
    bench = make_bench(servers=servers)
    fetched = fetch(make_fetcher(bench), micro_batch(0, 40))

    ((wanted, rows),) = fetched.rows
    spec, seed = bench.blueprint.tables[0], table_seed(bench.run.training.seed, 0)
    assert len(set(wanted.keys.tolist())) == len(wanted.keys)
    assert wanted.keys[wanted.places].tolist() == wanted.asked.tolist()
    np.testing.assert_array_equal(rows, first_values(wanted.keys, width=spec.width, seed=seed, scale=spec.scale))


def test_dense_parameters_come_with_the_first_micro_batch_of_a_task_alone(make_bench):
    bench = make_bench(servers=2)
    task = Task(assign((0, 20)), closed=True)
    first, second = [
        fetch(make_fetcher(bench), MicroBatch(task, number, 10 * number, 10 * number + 10)) for number in (0, 1)
    ]
    kept, _ = checkpoints.load_dense(
        checkpoints.newest(bench.folder), checkpoints.RunManifest.read(checkpoints.newest(bench.folder))
    )

    np.testing.assert_array_equal(first.dense, kept)
    assert second.dense is None
    assert fetch(make_fetcher(bench, dense=False), micro_batch(0, 10)).dense is None
    assert [span.kind for span in task.spans] == ["read", "fetch", "read", "fetch"]


def test_what_is_not_wanted_any_more_is_skipped(make_bench):
    bench = make_bench()
    old, new = micro_batch(0, 10, generation=1), micro_batch(10, 20, generation=2)
    fetcher = make_fetcher(bench, wanted=lambda task: task.assign.generation == 2)
    for each in (old, new, None):
        fetcher.micro_batches.put(each)
    with running(fetcher.run):
        fetched = fetcher.ready.get(timeout=60)

    assert fetched is not None
    assert fetched.micro_batch is new
    assert fetcher.ready.empty()


def test_a_thread_with_nowhere_to_put_its_micro_batch_lets_go_of_it_when_it_is_not_wanted(make_bench):
    bench = make_bench()
    good = [micro_batch(0, 5) for _ in range(AHEAD + 1)]
    unwanted = []
    fetcher = make_fetcher(bench, wanted=lambda task: task not in unwanted)
    for each in [*good, None]:
        fetcher.micro_batches.put(each)
    with running(fetcher.run):
        while not fetcher.ready.full():
            time.sleep(0.001)
        unwanted.append(good[-1].task)

    assert [fetcher.ready.get(timeout=60).micro_batch for _ in range(AHEAD)] == good[:AHEAD]


def test_a_nudge_is_never_waited_for(make_bench):
    fetcher = make_fetcher(make_bench())
    for _ in range(AHEAD + 3):
        fetcher.nudge()

    assert [fetcher.ready.get_nowait() for _ in range(AHEAD)] == [None] * AHEAD


def test_samples_that_several_threads_read_come_in_their_order_without_those_that_nobody_wants(make_bench):
    bench = make_bench()
    fetcher = make_fetcher(bench, wanted=lambda task: task is not unwanted)
    fetcher._readers = 3
    wanted = [micro_batch(10 * number, 10 * number + 10) for number in range(9)]
    other = micro_batch(0, 10)
    unwanted = other.task
    for each in (*wanted[:4], other, *wanted[4:], None):
        fetcher.micro_batches.put(each)

    with running(fetcher.run):
        fetched = [fetcher.ready.get(timeout=60) for _ in wanted]

    assert [each.micro_batch for each in fetched] == wanted
    assert all(each.core_s > 0 for each in fetched)


def test_samples_that_are_read_ahead_come_in_their_order_and_an_error_comes_too(make_bench):
    bench = make_bench()
    fetcher = make_fetcher(bench)
    fetcher._reads_ahead = True  # as with a GPU
    wanted = [micro_batch(10 * number, 10 * number + 10) for number in range(6)]
    for each in (*wanted, None):
        fetcher.micro_batches.put(each)
    with running(fetcher.run):
        fetched = [fetcher.ready.get(timeout=60) for _ in wanted]
    assert [each.micro_batch for each in fetched] == wanted

    def broken():
        yield 1
        raise ValueError("no more")

    items = ahead(broken(), "a-thread")
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)
