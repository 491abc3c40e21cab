"""Predicted and measured training speed of CTR-DNN in one process on the CPU: a part of prediction.py.

Per thread count the layers are profiled at two batch sizes, the law of each layer is fitted, and the speed is predicted
at these and at other batch sizes; then whole training steps are timed. Profile and training take turns, so that a noisy
neighbour disturbs both alike. The simple prediction beside it is the speed of the largest batch, for every batch.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from dovetail.data import Batch, load_data
from dovetail.machine import cores
from dovetail.models import LayerGraph, load_model, make_optimizer, train_step
from dovetail.profiler.layers import measure_layers
from dovetail.profiler.profile import fit_amdahl

ROWS, WIDTH = 26 * 100_000, 16
PROFILED = (512, 4096)
PREDICTED = (512, 1024, 2048, 4096)
TURNS = 3
STEPS = 12
WARM_UP = 3


def run(_: Namespace) -> list[dict[str, Any]]:
    """Return a row for every thread count and batch size."""
    usable = max(1, int(cores().num_usable))
    rows = []
    for threads in sorted({1, max(1, usable // 2), usable}):
        torch.set_num_threads(threads)
        rows += one_device(torch.device("cpu"), f"cpu, {threads} thread{'s' if threads > 1 else ''}", group="cpu")
    return rows


def one_device(device: torch.device, title: str, *, group: str) -> list[dict[str, Any]]:
    """Return predicted and measured speeds of the whole model on one device."""
    graph, batches = model_and_batches(device)
    optimizer = make_optimizer(graph, "adam", 1e-4)
    profiles: dict[int, list[list[float]]] = {size: [] for size in PROFILED}
    measured: dict[int, list[float]] = {size: [] for size in PREDICTED}
    for _ in range(TURNS):
        for size in PROFILED:
            layers = measure_layers(graph, cut(batches, size), optimizer="adam", learning_rate=1e-4)
            profiles[size].append([layer.total_s for layer in layers])
        for size in PREDICTED:
            measured[size] += step_seconds(lambda batch: train_step(graph, batch, optimizer), cut(batches, size))
    simple = max(PREDICTED) / predicted_s(profiles, max(PREDICTED))
    return [
        row(f"{title}, batch {size}", group, size, predicted_s(profiles, size), measured[size], simple)
        for size in PREDICTED
    ]


def predicted_s(profiles: dict[int, list[list[float]]], size: int) -> float:
    """Return the seconds of a step: each layer by the law fitted to its times at the profiled sizes.

    A batch of size b is the share of one of max / b units.
    """
    largest = max(profiles)
    total_s = 0.0
    for position in range(len(profiles[largest][0])):
        times = {
            largest // profiled: statistics.median(turn[position] for turn in turns)
            for profiled, turns in profiles.items()
        }
        law = fit_amdahl(times)
        total_s += law.seconds * (1 - law.parallel + law.parallel * size / largest)
    return total_s


def model_and_batches(device: torch.device) -> tuple[LayerGraph, list[Batch]]:
    """Return CTR-DNN and eight batches of the largest size, on a device."""
    source = load_data("clicks")
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=ROWS, width=WIDTH)
    size = max(PREDICTED)
    return graph.to(device), [source.read(turn * size, (turn + 1) * size).to(device) for turn in range(8)]


def cut(batches: list[Batch], size: int) -> list[Batch]:
    """Return the first samples of each batch."""
    return [batch.slice(0, size) for batch in batches]


def step_seconds(step: Callable[[Batch], Any], batches: list[Batch]) -> list[float]:
    """Return the seconds of whole steps, after warming up."""
    seconds = []
    for turn in range(WARM_UP + STEPS):
        finish_device()
        started_s = time.perf_counter()
        step(batches[turn % len(batches)])
        finish_device()
        if turn >= WARM_UP:
            seconds.append(time.perf_counter() - started_s)
    return seconds


def finish_device() -> None:
    """Wait until a GPU, where there is one, is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def row(
    plan: str, group: str, size: int, predicted_step_s: float, step_s: list[float], simple: float | None
) -> dict[str, Any]:
    """Return a row of the table, in samples/s."""
    return {
        "plan": plan,
        "group": group,
        "unit": "samples/s",
        "predicted": size / predicted_step_s,
        "measured": size / statistics.median(step_s),
        "simple": simple,
    }
