"""Gradients that leave bucket by bucket while the backward pass goes on are those of one piece."""

import numpy as np
import torch

from dovetail.runtime.dense.buckets import buckets_of
from dovetail.runtime.worker.dense.sync import BucketPush
from dovetail.runtime.worker.send import Sender
from tests.runtime.worker.makers import micro_batch, running
from tests.runtime.worker.test_compute import compute, fetched_by


def test_buckets_are_sent_while_the_backward_pass_goes_on_and_are_those_of_one_piece(make_bench):
    bench = make_bench(servers=2, slice_bytes=100)
    fetched = fetched_by(bench, 0, 60)
    compute(bench, fetched)
    whole = bench.model.gradients.numpy().copy()
    bench.model.gradients.zero_()
    found, order = np.full(len(whole), np.nan, dtype=np.float32), []

    class Watched(Sender):
        def put_bucket(self, task, where, numbers, then):
            found[where.first : where.last], _ = numbers, order.append(where.first)
            then()

    sender = Watched("worker-0", "worker-0/1", bench.lines(), wanted=lambda task: True, tell=lambda *_: None)
    sync = BucketPush(bench.model, buckets_of(bench.blueprint), sender)
    task = micro_batch(0, 60).task
    sync.begin_task()

    compute(bench, fetched, before_backward=lambda: sync.begin_last(task))

    assert order[0] > order[-1]  # the last layers first
    assert sync.gradients_to_push() is None
    np.testing.assert_array_equal(found, whole)
    np.testing.assert_array_equal(sync.gradients_to_push(), np.zeros_like(whole))  # of a task without samples


def test_a_task_in_buckets_counts_on_every_server_after_its_last_part(make_bench):
    bench = make_bench(servers=2, slice_bytes=100)
    done = []
    sender = Sender(
        "worker-0", "worker-0/1", bench.lines(), wanted=lambda task: True, tell=lambda message, _: done.append(message)
    )
    sync = BucketPush(bench.model, buckets_of(bench.blueprint), sender)
    fetched = fetched_by(bench, 0, 60)
    task = fetched.micro_batch.task
    sync.begin_task()

    with running(sender.run):
        computed = compute(bench, fetched, before_backward=lambda: sync.begin_last(task))
        sender.put_last(task, computed.rows, sync.gradients_to_push(), ())
        sender.stop()

    assert len(done) == 1
    sums = np.concatenate([shard.step_sums().dense for shard in bench.shards])
    torch.testing.assert_close(torch.from_numpy(sums), bench.model.gradients)
    sync.begin_task()
    assert not bench.model.gradients.any()
