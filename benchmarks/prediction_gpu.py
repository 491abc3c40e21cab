"""Predicted and measured training speed of CTR-DNN with a GPU: a part of prediction.py.

All on the GPU, and split: the embedding on the CPU, the rest on the GPU, one after the other. The split is predicted
from the layers of both profiles and from how long tensors of those sizes take from one device to the other and back.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from dovetail.data import Batch
from dovetail.errors import DovetailError
from dovetail.models import LayerGraph, make_optimizer
from dovetail.profiler.layers import measure_layers
from prediction_cpu import (
    PREDICTED,
    STEPS,
    TURNS,
    WARM_UP,
    WIDTH,
    cut,
    finish_device,
    model_and_batches,
    one_device,
    row,
    step_seconds,
)

SLOTS = 26


def run(_: Namespace) -> list[dict[str, Any]]:
    """Return a row for every batch size on the GPU, and for the split between CPU and GPU."""
    if not torch.cuda.is_available():
        raise DovetailError("there is no CUDA device here", hint="run --part cpu, or run this where there is one")
    return one_device(torch.device("cuda"), "gpu", group="gpu") + split_rows()


def split_rows() -> list[dict[str, Any]]:
    """Return predicted and measured speeds with the embedding on the CPU and the rest on the GPU."""
    device = torch.device("cuda")
    on_cpu, batches = model_and_batches(torch.device("cpu"))
    on_gpu, _ = model_and_batches(device)
    step = split_step(model_and_batches(torch.device("cpu"))[0], device)
    predicted: dict[int, list[float]] = {size: [] for size in PREDICTED}
    measured: dict[int, list[float]] = {size: [] for size in PREDICTED}
    for _ in range(TURNS):
        for size in PREDICTED:
            shares = cut(batches, size)
            first, *_ = measure_layers(on_cpu, shares, optimizer="adam", learning_rate=1e-4)
            _, *rest = measure_layers(on_gpu, [share.to(device) for share in shares], optimizer="adam")
            copies_s = copy_seconds(size * SLOTS * WIDTH, device) + batch_copy_seconds(shares[0], device)
            predicted[size].append(first.total_s + sum(layer.total_s for layer in rest) + copies_s)
            measured[size] += step_seconds(step, shares)
    return [
        row(f"split, batch {size}", "split", size, statistics.median(predicted[size]), measured[size], None)
        for size in PREDICTED
    ]


def copy_seconds(num_floats: int, device: torch.device) -> float:
    """Return the seconds of so many floats there and back, from ordinary memory, as the step copies them."""
    vectors = torch.zeros(num_floats)
    return timed(lambda: vectors.to(device).to("cpu"))


def batch_copy_seconds(batch: Batch, device: torch.device) -> float:
    """Return the seconds of a batch to the device."""
    return timed(lambda: batch.to(device))


def timed(copy: Callable[[], object]) -> float:
    """Return the median seconds of a copy."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        finish_device()
        started_s = time.perf_counter()
        copy()
        finish_device()
        seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds[WARM_UP:])


def split_step(graph: LayerGraph, device: torch.device) -> Callable[[Batch], None]:
    """Return a training step whose first block stays on the CPU."""
    first, *others = graph.blocks
    for block in others:
        block.module.to(device)
    optimizers = [
        make_optimizer(first.module, "adam", 1e-4),
        make_optimizer(torch.nn.ModuleList([block.module for block in others]), "adam", 1e-4),
    ]

    def step(batch: Batch) -> None:
        vectors = first.module(batch.ids, batch.offsets)
        cut_off = vectors.detach().to(device).requires_grad_(True)
        loss = graph.run(batch.to(device), {first.name: cut_off}, first=1)[others[-1].name]
        (loss / batch.num_samples).backward()
        assert cut_off.grad is not None
        vectors.backward(cut_off.grad.to("cpu"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step
