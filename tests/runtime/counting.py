"""A model that counts: trained by plain SGD at rate 1, each row ends as often above its first value as it was used."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.data.clicks import Clicks
from dovetail.data.schema import Schema
from dovetail.embedding.hashing import first_values
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.recipe import Recipe
from dovetail.runtime.blueprint import Blueprint, table_seed
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.runs import NUM_ROWS, last_state

COUNTING = RunModel(name="tests.runtime.counting:counting_model")
PLAIN = RunOptimizer(name="sgd", rows="sgd", learning_rate=1.0)


class Count(nn.Module):
    """A loss whose gradient is -1 for every use of a row, and -1 a sample for its own parameter."""

    def __init__(self, pause_s: float, hang_at: str = "", until: str = "") -> None:
        """Wait for so long with every sample: time for a test to do things in. Hang where the file is there.

        With a file in `until` it waits no more once the file is there: however slow the machine, the run is not over
        before the test has seen what it looks for, and is over soon after.
        """
        super().__init__()
        self.samples = nn.Parameter(torch.zeros(1))
        self._pause_s, self._hang_at, self._until = pause_s, hang_at, until

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        if self._hang_at:
            with suppress(FileNotFoundError):  # whoever takes the file away hangs
                Path(self._hang_at).rename(f"{self._hang_at}.taken-{os.getpid()}")
                time.sleep(100_000)
        if not (self._until and Path(self._until).exists()):
            time.sleep(self._pause_s * len(labels))
        return -pooled.sum() - self.samples.sum() * len(labels)


class PassOn(nn.Module):
    """Passes on what it gets; the gradient of its own parameter is -1 for every slot of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.zeros(1))

    def forward(self, pooled: Tensor) -> Tensor:
        return pooled + (self.slots - self.slots.detach())


def counting_model(
    schema: Schema, pause_s: float = 0.0, hang_at: str = "", has_middle: bool = False, until: str = ""
) -> LayerGraph:
    """Return the model, which takes `pause_s` a sample, until the file `until` is there where it has a name.

    A worker that finds the file `hang_at` hangs. With a middle it can be cut into three.
    """
    embedding = SlotEmbedding(num_rows=NUM_ROWS, width=1, num_slots=schema.num_slots)
    return LayerGraph(
        [
            Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
            *([Block(name="middle", kind="other", module=PassOn())] if has_middle else []),
            Block(name="loss", kind="loss", module=Count(pause_s, hang_at, until), reads=("labels",)),
        ],
        recipe=Recipe(metric="none"),
    )


def slow_counting(pause_s: float, *, until: Path | None = None, **options: str | bool) -> RunModel:
    """Return the model that takes `pause_s` a sample, until a file is there where one is named."""
    hurries = {} if until is None else {"until": str(until)}
    return RunModel(name=COUNTING.name, options={"pause_s": pause_s, **hurries, **options})


def assert_each_sample_counts_once(folder: Path, source: Clicks | None = None) -> None:
    """Check the last checkpoint of a run of the counting model against the data."""
    blueprint = Blueprint.read(folder)
    data = Clicks(**blueprint.run.data.options) if source is None else source
    epochs = blueprint.run.training.epochs
    expected = epochs * np.bincount(data.read(0, blueprint.samples).ids.numpy() % NUM_ROWS, minlength=NUM_ROWS)
    state = last_state(folder)
    keys = state.keys[0]
    seed = table_seed(blueprint.run.training.seed, 0)
    grown = state.rows[0] - first_values(keys, width=1, seed=seed, scale=blueprint.tables[0].scale)
    counts = np.zeros(NUM_ROWS, dtype=np.int64)
    counts[keys] = np.rint(grown[:, 0]).astype(np.int64)
    assert state.manifest.position == blueprint.samples * epochs
    slots = [data.schema.num_slots * blueprint.samples * epochs] * (len(blueprint.dense) - 1)
    assert state.dense.tolist() == [*slots, blueprint.samples * epochs]
    np.testing.assert_array_equal(counts, expected)
    assert np.abs(grown[:, 0] - counts[keys]).max() < 0.2  # a sum of float32 numbers, each step rounded
