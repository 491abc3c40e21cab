"""Profiling layers: every block once, gradients as in training, sizes by hand, laws that fit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import load_data
from dovetail.models import load_model, make_optimizer
from dovetail.profiler.layers import WallClock, _block_by_block, _scaled, measure_layers
from dovetail.profiler.profile import estimate_layer, fit_amdahl
from dovetail.profiler.request import ProfileRequest
from dovetail.profiler.sizes import measure_sizes
from dovetail.profiler.workers import measure_side_by_side
from dovetail.spec import ResourceType

SMALL = {"num_rows": 50, "width": 4, "hidden": (8, 8)}


@pytest.fixture(scope="module")
def clicks():
    return load_data("clicks", rows_per_slot=50)


@pytest.mark.parametrize("name", ["ctr-dnn", "2emb", "dlrm"])
def test_block_by_block_the_gradients_are_those_of_the_whole_model(name: str, clicks) -> None:
    graph = load_model(name, schema=clicks.schema, num_rows=50, width=4)
    batch = clicks.read(0, 32)
    (graph(batch) / 32).backward()
    expected = {key: parameter.grad.to_dense().clone() for key, parameter in graph.named_parameters()}
    graph.zero_grad(set_to_none=True)
    _block_by_block(graph, batch, [None] * len(graph), WallClock())

    for key, parameter in graph.named_parameters():
        torch.testing.assert_close(parameter.grad.to_dense(), expected[key], rtol=1e-5, atol=1e-7)


def test_every_layer_has_its_times_and_only_layers_with_parameters_have_updates(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, **SMALL)
    times = measure_layers(graph, [clicks.read(0, 64)], optimizer="adam", repeats=2)

    assert len(times) == len(graph)
    for block, layer in zip(graph.blocks, times, strict=True):
        assert layer.forward_s > 0
        has_parameters = any(True for _ in block.module.parameters())
        assert (layer.update_s > 0) == has_parameters


def test_a_step_that_takes_longer_than_there_is_time_is_measured_once(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, **SMALL)
    batches, passes = [clicks.read(0, 32)], []

    layers = measure_layers(
        graph, batches, optimizer="adam", seconds=0.0, progress=lambda number, _: passes.append(number)
    )

    assert passes == [1]
    assert len(layers) == len(graph)
    assert all(layer.forward_s > 0 for layer in layers)


def test_layers_are_scaled_so_that_each_phase_adds_up_to_the_whole_step() -> None:
    layers = _scaled([(1.0, 2.0, 0.0), (3.0, 2.0, 0.0)], (2.0, 8.0, 0.0))

    assert layers == [(0.5, 4.0, 0.0), (1.5, 4.0, 0.0)]


def test_sizes_are_those_counted_by_hand(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, num_rows=50, width=4, hidden=(8,))
    batch = clicks.read(0, 10)
    sizes = {
        block.name: size
        for block, size in zip(graph.blocks, measure_sizes(graph, batch, optimizer="adam"), strict=True)
    }
    inputs = 26 * 4 + 13

    assert sizes["embedding"].weight_bytes == 50 * 4 * 4
    assert sizes["embedding"].optimizer_bytes == 2 * 50 * 4 * 4  # two moments a value
    assert sizes["embedding"].output_bytes == 10 * 26 * 4 * 4
    touched = len(set((batch.ids % 50).tolist()))
    assert sizes["embedding"].traffic_bytes == 2 * touched * 4 * 4  # rows there, gradients back
    assert sizes["fc1"].weight_bytes == (inputs * 8 + 8) * 4
    assert sizes["fc1"].forward_flops == 2 * 10 * inputs * 8
    assert sizes["fc1"].traffic_bytes == 2 * (inputs * 8 + 8) * 4  # a ring sends and receives every gradient
    assert sizes["fc1"].activation_bytes == 10 * 8 * 4  # its output; its input is the output of concat
    assert sizes["relu1"].weight_bytes == 0


def test_measuring_sizes_leaves_the_model_as_it_was(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, **SMALL)
    before = {key: value.clone() for key, value in graph.state_dict().items()}
    measure_sizes(graph, clicks.read(0, 8), optimizer="adam")

    assert all(torch.equal(value, before[key]) for key, value in graph.state_dict().items())
    assert all(parameter.grad is None for parameter in graph.parameters())


@given(
    serial=st.floats(0.001, 10),
    shared=st.floats(0.001, 10),
    counts=st.sets(st.integers(1, 64), min_size=2, max_size=5),
)
def test_a_law_is_found_again_from_its_own_points(serial: float, shared: float, counts: set[int]) -> None:
    law = fit_amdahl({units: serial + shared / units for units in counts})

    assert law.seconds == pytest.approx(serial + shared, rel=1e-6)
    assert law.parallel == pytest.approx(shared / (serial + shared), rel=1e-6)


def test_times_that_rise_with_units_have_no_shared_part_and_faster_than_linear_ones_no_serial_part() -> None:
    assert fit_amdahl({1: 1.0, 2: 1.1}).parallel == 0.0
    assert fit_amdahl({1: 1.0, 2: 0.4}).parallel == 1.0
    assert fit_amdahl({1: 0.0, 2: 0.0}).seconds == 0.0


def test_an_estimate_is_overhead_and_the_slower_of_arithmetic_and_memory(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, num_rows=50, width=4, hidden=(8,))
    sizes = measure_sizes(graph, clicks.read(0, 10), optimizer="adam")[2]
    gpu = ResourceType(name="gpu", price_per_hour=1.0, flops_per_s=1e9, memory_bytes_per_s=1e15)
    estimate = estimate_layer(sizes, gpu, is_embedding=False, network_bytes_per_s=1e9)

    assert estimate is not None
    assert estimate.compute_s == pytest.approx(6e-5 + 3 * sizes.forward_flops / 0.6e9)
    assert estimate.source == "estimated"
    unknown = ResourceType(name="cpu", price_per_hour=1.0)
    assert estimate_layer(sizes, unknown, is_embedding=False, network_bytes_per_s=1e9) is None


def test_two_workers_measure_side_by_side() -> None:
    request = ProfileRequest(
        model="ctr-dnn", batch=64, model_options=SMALL, data_options={"rows_per_slot": 50}, optimizer="sgd"
    )
    times = measure_side_by_side(request, num_workers=2, batch=32)

    assert len(times) == len(request.build()[0])
    assert all(layer.forward_s > 0 for layer in times)


def test_an_optimizer_steps_every_block_of_its_own(clicks) -> None:
    graph = load_model("ctr-dnn", schema=clicks.schema, **SMALL)
    before = {key: value.clone() for key, value in graph.state_dict().items()}
    optimizers = [
        make_optimizer(block.module, "sgd", 0.1) if any(True for _ in block.module.parameters()) else None
        for block in graph.blocks
    ]
    _block_by_block(graph, clicks.read(0, 32), optimizers, WallClock())

    assert all(not torch.equal(value, before[key]) for key, value in graph.state_dict().items())


def test_a_users_own_classifier_is_profiled_with_the_loss_of_classes(tmp_path):
    (tmp_path / "ten.py").write_text(
        "from torch import nn\n\ndef build(schema):\n    return nn.Sequential(nn.Linear(schema.num_dense, 10))\n"
    )
    request = ProfileRequest(model=f"{tmp_path / 'ten.py'}:build", batch=16)

    graph, batches = request.build()

    assert graph.recipe.loss == "cross-entropy"
    assert torch.isfinite(graph(batches[0]))
