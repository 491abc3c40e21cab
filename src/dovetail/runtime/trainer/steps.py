"""What the loop asks of the place where rows lie: steps of batches that were announced before.

A place is one file that makes a `Strategy`: `on_host` (host memory and disk), `on_device` (a GPU's memory over
them), `sharded.over_workers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema
from dovetail.embedding import Table
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.folder import TableSummary
from dovetail.runtime.model.build import Model
from dovetail.runtime.worker.compute.served_model import ServedModel

Tell = Callable[[str], None]


class Steps(Protocol):
    """Computes batches in the order in which they were announced."""

    @property
    def waited_s(self) -> float:
        """How long look-ups have waited for rows."""
        ...

    def prepare(self, batch: Batch) -> Any:
        """Return what is announced of a batch; any thread may ask."""
        ...

    def announce(self, prepared: Any) -> None:
        """Take in, in the loop's own thread, what was prepared of a batch to come, and have its rows brought."""
        ...

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Add a batch's dense gradients up, step its rows, and return the summed loss and the model's answer.

        Rows step by `scale` times their gradients, at `factor` times their rate; the first step has the number 1.
        """
        ...


@runtime_checkable
class PreparesTogether(Protocol):
    """Steps that prepare several batches at a smaller price than one after the other."""

    def prepare_all(self, whole: Batch, batches: Sequence[Batch]) -> Sequence[Any]:
        """Return what is announced of each of the batches that make up `whole`; any thread may ask."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """What a trainer begins with: a run's folder, the checkpoint that it goes on from, and the model."""

    folder: Path
    blueprint: Blueprint
    checkpoint: Path
    manifest: RunManifest
    built: Model
    """In training, its tables without memory."""
    schema: Schema
    device: torch.device
    tell: Tell
    """Hears what is to be said of the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """Rows somewhere: a model that looks them up, how it takes steps, and the tables, which the checkpoint is of."""

    model: ServedModel
    steps: Steps
    tables: Sequence[Table]
    summary_of: Callable[[Table], TableSummary]
    """Says where a table's rows are, and what moved."""

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have no rows planned or moved for a moment."""
        with ExitStack() as still:
            for table in self.tables:
                if table.on_device is not None:
                    still.enter_context(table.on_device.quiet())
            yield


MakeStrategy = Callable[[Beginning], Strategy]
