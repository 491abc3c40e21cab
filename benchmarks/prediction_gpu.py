"""Predicted and measured training speed of CTR-DNN with a GPU: a part of prediction.py.

All on the GPU, and split: the embedding on the CPU, the rest on the GPU, one after the other. The split is predicted
from the profiles of both devices and the measured copies between them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from dovetail.data import Batch
from dovetail.errors import DovetailError
from dovetail.models import Chain, make_optimizer
from dovetail.profiler.layers import measure_layers
from dovetail.profiler.links import measure_device_copies
from prediction_cpu import PREDICTED, WIDTH, cut, model_and_batches, one_device, row, step_seconds

SLOTS = 26
FLOAT_BYTES = 4


def run(_: Namespace) -> list[dict[str, Any]]:
    """Return a row for every batch size on the GPU, and for the split between CPU and GPU."""
    if not torch.cuda.is_available():
        raise DovetailError("there is no CUDA device here", hint="run --part cpu, or run this where there is one")
    return one_device(torch.device("cuda"), "gpu", group="gpu") + split_rows()


def split_rows() -> list[dict[str, Any]]:
    """Return predicted and measured speeds with the embedding on the CPU and the rest on the GPU."""
    device = torch.device("cuda")
    copies = measure_device_copies()
    rows = []
    for size in PREDICTED:
        chain, batches = model_and_batches(torch.device("cpu"))
        batches = cut(batches, size)
        on_cpu = measure_layers(chain, batches, optimizer="adam", learning_rate=1e-4)
        on_gpu = measure_layers(chain.to(device), [batch.to(device) for batch in batches], optimizer="adam")
        chain.to("cpu")
        vectors_bytes = size * SLOTS * WIDTH * FLOAT_BYTES
        predicted_s = (
            on_cpu[0].total_s
            + sum(layer.total_s for layer in on_gpu[1:])
            + copies.there.seconds(vectors_bytes)
            + copies.back.seconds(vectors_bytes)
            + copies.there.seconds(batches[0].num_bytes)
        )
        measured_s = step_seconds(split_step(chain, device), batches)
        rows.append(row(f"split, batch {size}", "split", size, predicted_s, measured_s, None))
    return rows


def split_step(chain: Chain, device: torch.device) -> Callable[[Batch], None]:
    """Return a training step whose first block stays on the CPU."""
    first, *others = chain.blocks
    for block in others:
        block.module.to(device)
    optimizers = [
        make_optimizer(first.module, "adam", 1e-4),
        make_optimizer(torch.nn.ModuleList([block.module for block in others]), "adam", 1e-4),
    ]

    def step(batch: Batch) -> None:
        vectors = first.module(batch.ids, batch.offsets)
        cut_off = vectors.detach().to(device).requires_grad_(True)
        loss = chain.run(batch.to(device), {first.name: cut_off}, first=1)[others[-1].name]
        (loss / batch.num_samples).backward()
        assert cut_off.grad is not None
        vectors.backward(cut_off.grad.to("cpu"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step
