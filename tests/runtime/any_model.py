"""Models and data as users have them, and what plain PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data import Batch, Clicks, Schema, Slot
from dovetail.data.source import Source
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer
from testbed.direct_servers import DirectServers
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAM

NUM_DENSE, NUM_SLOTS, ROWS = 3, 2, 20


CLICKS = Clicks(truth="logistic", num_slots=NUM_SLOTS, num_multi_valued=0, num_dense=NUM_DENSE, rows_per_slot=ROWS // 2)


@dataclass(frozen=True)
class Labelled:
    """Clicks with other labels: a function of the samples' numbers and ids; with weights where they are wanted."""

    labels: Callable[[Batch], Tensor]
    num_samples: int = 600
    weights: Callable[[Batch], Tensor] | None = None

    @property
    def schema(self) -> Schema:
        return replace(CLICKS.schema, slots=(Slot(name="user"), Slot(name="item")))

    def read(self, first: int, last: int) -> Batch:
        batch = CLICKS.read(first, min(last, self.num_samples))
        return replace(batch, labels=self.labels(batch), weights=None if self.weights is None else self.weights(batch))


def clicked(batch: Batch) -> Tensor:
    return batch.labels


def numbers(batch: Batch) -> Tensor:
    return 10.0 + 3.0 * batch.dense[:, 0]


def classes(batch: Batch) -> Tensor:
    return (batch.ids.view(-1, NUM_SLOTS)[:, 0] % 5).float()


def several(batch: Batch) -> Tensor:
    return (batch.dense > 0).float()


def both(batch: Batch) -> Tensor:
    return torch.stack([batch.labels, numbers(batch)], dim=1)


def uneven(batch: Batch) -> Tensor:
    return 0.5 + (batch.sample_ids % 4).float()


def make_run(
    *, loss: Any = None, optimizer: RunOptimizer | None = None, servers: int = 2, workers: int = 1, **training: Any
) -> Run:
    """Return a run of a model and data that are objects."""
    return Run(
        model=RunModel(name="tests.Own", loss=loss),
        data=RunData(name="tests.Data", block_samples=64),
        training=RunTraining(**({"batch": 100, "seed": 3} | training)),
        optimizer=optimizer or ADAM,
        servers=RunServers(count=servers, host_bytes=1 << 24),
        workers=[RunWorker(count=workers)],
    )


def train_here(run: Run, folder: Path, model: nn.Module, source: Source) -> None:
    """Train in this process: the same parts as over many."""
    prepare(run, folder, model=model, source=source)
    alone = DirectServers(folder, model=model, source=source)
    try:
        alone.run()
    finally:
        alone.close()


class Plain(nn.Module):
    """A model and its loss, summed, as PyTorch has them."""

    def __init__(self, module: nn.Module, loss: Callable[[Any, Batch], Tensor]) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch: Batch) -> Tensor:
        reads = [name for name in ("ids", "offsets", "dense") if name in self.module.takes]
        return self.loss(self.module(*(getattr(batch, name) for name in reads)), batch)


def by_pytorch(run: Run, module: nn.Module, source: Source, loss: Callable[[Any, Batch], Tensor]) -> OneProcess:
    """Train in one process with PyTorch's own autograd, losses and optimizers."""
    alone = OneProcess(run, Plain(module, loss), source)
    alone.train()
    return alone
