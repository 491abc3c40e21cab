"""Dense parameters that come bucket by bucket are those of one piece, and layers run when theirs are there."""

import threading

import numpy as np
import pytest
import torch

from dovetail.runtime.dense.buckets import buckets_of
from dovetail.runtime.worker.dense.sync import BucketPull, ServerSync
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.runtime.worker.tasks.task import ArrivingBuckets
from tests.runtime.worker.makers import micro_batch, running
from tests.runtime.worker.test_compute import compute, fetched_by


def arriving_of(values, buckets):
    """Return parameters of which nothing has come yet."""
    return ArrivingBuckets(values, [threading.Event() for _ in buckets])


def pull_of(bench, buckets):
    """Return what has layers wait, and nobody to fetch."""
    return BucketPull(bench.model, buckets, bench.lines(), lambda task: True)


@pytest.mark.parametrize("servers", [1, 3])
def test_parameters_in_buckets_are_those_of_one_piece(make_bench, servers):
    bench = make_bench(servers=servers, slice_bytes=100)
    buckets = buckets_of(bench.blueprint)
    expected = compute(bench, fetched_by(bench, 0, 60))
    whole = bench.model.values.clone()
    bench.model.values.fill_(7.0)
    rested = threading.Event()
    pull = BucketPull(bench.model, buckets, bench.lines(), lambda task: True, rested.set)
    fetcher = Fetcher(
        bench.blueprint,
        bench.samples,
        bench.model,
        bench.lines(),
        ServerSync(bench.model, pull),
        wanted=lambda task: True,
    )

    with running(pull.run):
        fetched = fetcher.fetch(fetcher.read(micro_batch(0, 60)))
        assert fetched.dense is None
        pull.begin(fetched.arriving, lambda: True)
        loss = loss_of(bench, fetched)
        pull.end()
        pull.stop()

    assert rested.is_set()  # else it would count as standing still from then on
    assert loss == expected.loss
    torch.testing.assert_close(bench.model.values, whole, rtol=0, atol=0)


def loss_of(bench, fetched):
    """Return the loss of a micro-batch with the parameters that the model takes itself."""
    bench.model.rows.begin(fetched.rows, lambda _: pytest.fail("all were ahead"))
    loss, _ = bench.model.outcome(fetched.batch)
    return float(loss.detach())


def test_a_layer_waits_for_its_buckets_and_not_for_those_of_later_ones(make_bench):
    bench = make_bench(slice_bytes=100)
    fetched = fetched_by(bench, 0, 30)
    expected = compute(bench, fetched).loss
    buckets, values = buckets_of(bench.blueprint), fetched.dense.copy()
    bench.model.values.zero_()
    pull, arriving = pull_of(bench, buckets), arriving_of(values, buckets)
    layers = [block.module for block in bench.graph.blocks if any(p.requires_grad for p in block.module.parameters())]
    layers = [layer for layer in layers if any(p is each for p in layer.parameters() for each in bench.model.dense)]
    ran = [threading.Event() for _ in layers]
    for layer, event in zip(layers, ran, strict=True):
        layer.register_forward_hook(lambda *_, event=event: event.set())
    end_of_first = sum(parameter.numel() for parameter in layers[0].parameters())
    losses = []

    with running(lambda: (pull.begin(arriving, lambda: True), losses.append(loss_of(bench, fetched)), pull.end())):
        early = [number for number, each in enumerate(buckets) if each.first < end_of_first]
        for number in early:
            arriving.came[number].set()
        assert ran[0].wait(60)
        assert not ran[-1].wait(0.2)
        for event in arriving.came:
            event.set()

    assert losses == [expected]
    np.testing.assert_array_equal(bench.model.values.numpy(), values)


def test_nobody_waits_for_buckets_of_a_task_that_is_not_wanted(make_bench):
    bench = make_bench(slice_bytes=100)
    buckets = buckets_of(bench.blueprint)
    pull = pull_of(bench, buckets)
    pull.begin(arriving_of(np.zeros(bench.blueprint.dense_size, dtype=np.float32), buckets), lambda: False)

    with pytest.raises(Abandoned):
        pull.end()


def test_a_model_that_is_compiled_has_all_parameters_before_it_runs(make_bench):
    bench = make_bench(slice_bytes=100)
    buckets = buckets_of(bench.blueprint)
    bench.model.compiles = True
    pull = pull_of(bench, buckets)
    values = np.arange(bench.blueprint.dense_size, dtype=np.float32)
    arriving = arriving_of(values, buckets)
    for event in arriving.came:
        event.set()

    pull.begin(arriving, lambda: True)

    np.testing.assert_array_equal(bench.model.values.numpy(), values)
