"""What keeping few rows on a device costs, measured on the CPU as the device: the same code but for streams."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.data import load_data
from dovetail.embedding.tiers.device.budget import bytes_for
from dovetail.models import load_model
from dovetail.profiler.profile import profile
from dovetail.profiler.request import ProfileRequest
from dovetail.profiler.row_cache import estimate_row_cache, keys_of, measure_row_cache
from dovetail.spec import ResourceType, Training


def zipf_batches(seed=0, count=30, size=2000, rows=5000):
    rng = np.random.default_rng(seed)
    return [np.unique(np.minimum(rng.zipf(1.3, size) - 1, rows - 1)) for _ in range(count)]


def test_the_curve_foretells_the_hits_of_batches_that_were_not_seen():
    batches = zipf_batches()
    cache = measure_row_cache(batches, width=4, optimizer="adagrad", device="cpu")
    seen, counts = np.unique(np.concatenate(batches), return_counts=True)
    later = zipf_batches(seed=1)

    assert cache is not None
    assert cache.miss_s >= 0.0
    assert [ratio for _, ratio in cache.hits] == sorted(ratio for _, ratio in cache.hits)
    for part in (0.1, 0.5):
        num_rows = int(part * len(seen))
        kept = seen[np.argsort(-counts, kind="stable")[:num_rows]]
        hits = np.mean([np.isin(keys, kept).mean() for keys in later])
        assert cache.hit_ratio(bytes_for(num_rows, 8)) == pytest.approx(hits, abs=0.05)


def test_an_optimizer_that_tables_lack_is_not_measured():
    assert measure_row_cache(zipf_batches(), width=4, optimizer="lamb", device="cpu") is None


def test_the_keys_of_a_layer_are_those_that_it_looks_up():
    request = ProfileRequest(
        model="ctr-dnn", batch=64, data_options={"num_slots": 4, "rows_per_slot": 50, "num_samples": 640},
        model_options={"num_rows": 200, "width": 4, "hidden": [8]},
    )  # fmt: skip
    source = load_data("clicks", num_slots=4, rows_per_slot=50, num_samples=640)
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=200, width=4, hidden=[8])
    batches = list(request.batches(20))
    table = next(block.module for block in graph.blocks if block.kind == "embedding")

    assert len(batches) == 10  # there are no more
    np.testing.assert_array_equal(keys_of(table, batches[0]), np.unique(batches[0].ids.numpy() % 200))
    assert keys_of(nn.Linear(2, 2), batches[0]) is None
    assert torch.equal(batches[0].ids, request.build()[1][0].ids)


def test_a_device_elsewhere_has_the_same_curve_and_pays_for_its_bus():
    batches = zipf_batches()
    here = measure_row_cache(batches, width=4, optimizer="adagrad", device="cpu")
    slow, fast = (
        estimate_row_cache(batches, width=4, optimizer="adagrad", bus_bytes_per_s=rate) for rate in (1e6, 1e12)
    )
    num_rows = int(np.mean([len(keys) for keys in batches]))

    assert slow.hits == fast.hits == here.hits
    assert slow.miss_s > 2 * num_rows * 4 * 8 / 1e6  # values and sums of squares, up and down
    assert 0 < fast.miss_s < slow.miss_s
    assert estimate_row_cache(batches, width=4, optimizer="lamb", bus_bytes_per_s=1e9) is None


@pytest.mark.parametrize(
    ("asked", "room", "expected"), [(None, 4000.0, True), (None, 1e9, False), (5, 1e9, True), (0, 1.0, False)]
)
def test_where_nobody_asks_rows_are_counted_for_tables_that_do_not_fit(asked, room, expected):
    request = ProfileRequest(
        model="ctr-dnn", batch=64, data_options={"num_slots": 4, "rows_per_slot": 50, "num_samples": 640},
        model_options={"num_rows": 200, "width": 4, "hidden": [8]},
    )  # fmt: skip
    elsewhere = ResourceType(
        name="far", kind="gpu", price_per_hour=1.0, memory_bytes=room, flops_per_s=1e12, memory_bytes_per_s=1e11
    )
    said = []
    found = profile(
        request,
        training=Training(samples=640, batch=64),
        at_hand=[ResourceType(name="cpu", kind="cpu", price_per_hour=0.1)],
        elsewhere=[elsewhere],
        network_bytes_per_s=1e9,
        row_cache_batches=asked,
        buses={"far": 1e10},
        say=said.append,
    )
    layers = {layer.name: layer for layer in found.problem.layers}

    assert (layers["embedding"].on["far"].cache is not None) == expected
    assert layers["embedding"].on["cpu"].cache is None
    assert all(layer.on["far"].cache is None for name, layer in layers.items() if name != "embedding")
    assert any("that are not on far" in line for line in said) == expected
