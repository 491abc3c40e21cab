"""Dense parameters that come slice by slice are those of one piece, and layers run when theirs are there."""

import threading

import numpy as np
import pytest
import torch

from dovetail.runtime.dense.buckets import buckets_of
from dovetail.runtime.worker.dense.buckets import BucketPull, LayerBarrier
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.links.servers import Abandoned
from dovetail.runtime.worker.tasks.task import ArrivingBuckets
from tests.runtime.worker.makers import micro_batch, running
from tests.runtime.worker.test_compute import compute, fetched_by


def arriving_of(values, slices):
    """Return parameters of which nothing has come yet."""
    return ArrivingBuckets(values, [threading.Event() for _ in slices])


@pytest.mark.parametrize("servers", [1, 3])
def test_parameters_in_slices_are_those_of_one_piece(make_bench, servers):
    bench = make_bench(servers=servers, slice_bytes=100)
    slices = buckets_of(bench.blueprint)
    expected = compute(bench, fetched_by(bench, 0, 60))
    whole = bench.model.values.clone()
    bench.model.values.fill_(7.0)
    rested = threading.Event()
    pull = BucketPull(slices, bench.lines(), lambda task: True, rested.set)
    fetcher = Fetcher(
        *(bench.blueprint, bench.samples, bench.model, bench.lines()),
        wanted=lambda task: True, dense=True, slices=pull,
    )  # fmt: skip
    gate = LayerBarrier(bench.model, slices)

    with running(pull.run):
        fetched = fetcher.fetch(fetcher.read(micro_batch(0, 60)))
        assert fetched.dense is None
        gate.begin(fetched.arriving, lambda: True)
        loss = loss_of(bench, fetched)
        gate.end()
        pull.stop()

    assert rested.is_set()  # else it would count as standing still from then on
    assert loss == expected.loss
    torch.testing.assert_close(bench.model.values, whole, rtol=0, atol=0)


def loss_of(bench, fetched):
    """Return the loss of a micro-batch with the parameters that the model takes itself."""
    bench.model.rows.begin(fetched.rows, lambda _: pytest.fail("all were ahead"))
    loss, _ = bench.model.outcome(fetched.batch)
    return float(loss.detach())


def test_a_layer_waits_for_its_slices_and_not_for_those_of_later_ones(make_bench):
    bench = make_bench(slice_bytes=100)
    fetched = fetched_by(bench, 0, 30)
    expected = compute(bench, fetched).loss
    slices, values = buckets_of(bench.blueprint), fetched.dense.copy()
    bench.model.values.zero_()
    gate, arriving = LayerBarrier(bench.model, slices), arriving_of(values, slices)
    layers = [block.module for block in bench.graph.blocks if any(p.requires_grad for p in block.module.parameters())]
    layers = [layer for layer in layers if any(p is each for p in layer.parameters() for each in bench.model.dense)]
    ran = [threading.Event() for _ in layers]
    for layer, event in zip(layers, ran, strict=True):
        layer.register_forward_hook(lambda *_, event=event: event.set())
    end_of_first = sum(parameter.numel() for parameter in layers[0].parameters())
    losses = []

    with running(lambda: (gate.begin(arriving, lambda: True), losses.append(loss_of(bench, fetched)), gate.end())):
        early = [number for number, each in enumerate(slices) if each.first < end_of_first]
        for number in early:
            arriving.came[number].set()
        assert ran[0].wait(60)
        assert not ran[-1].wait(0.2)
        for event in arriving.came:
            event.set()

    assert losses == [expected]
    np.testing.assert_array_equal(bench.model.values.numpy(), values)


def test_nobody_waits_for_slices_of_a_task_that_is_not_wanted(make_bench):
    bench = make_bench(slice_bytes=100)
    slices = buckets_of(bench.blueprint)
    gate = LayerBarrier(bench.model, slices)
    gate.begin(arriving_of(np.zeros(bench.blueprint.dense_size, dtype=np.float32), slices), lambda: False)

    with pytest.raises(Abandoned):
        gate.end()


def test_a_model_that_is_compiled_has_all_parameters_before_it_runs(make_bench):
    bench = make_bench(slice_bytes=100)
    slices = buckets_of(bench.blueprint)
    bench.model.compiles = True
    gate = LayerBarrier(bench.model, slices)
    values = np.arange(bench.blueprint.dense_size, dtype=np.float32)
    arriving = arriving_of(values, slices)
    for event in arriving.came:
        event.set()

    gate.begin(arriving, lambda: True)

    np.testing.assert_array_equal(bench.model.values.numpy(), values)
