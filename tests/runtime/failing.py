"""Models and data that go wrong."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace

from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.clicks import Clicks
from dovetail.data.errors import DataError
from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.recipe import Recipe
from tests.runtime.counting import Count, counting_model


class Failing(nn.Module):
    """A loss that is well until it has seen `after` samples."""

    def __init__(self, how: str, after: int) -> None:
        """Fail by an error, by a number that is none, or by ending the process."""
        super().__init__()
        self.weight = nn.Parameter(Tensor([1.0]))
        self._how, self._left = how, after

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        self._left -= len(labels)
        if self._left < 0 and self._how == "raises":
            raise ZeroDivisionError("the model is out of luck")
        if self._left < 0 and self._how == "ends":
            os._exit(7)
        loss = (pooled.sum() * self.weight).sum()
        return loss * float("nan") if self._left < 0 and self._how == "nan" else loss


def failing_model(schema: Schema, how: str, after: int = 500) -> LayerGraph:
    """Return a model that fails."""
    embedding = SlotEmbedding(num_rows=100, width=1, num_slots=schema.num_slots)
    return LayerGraph(
        [
            Block(name="embedding", kind="embedding", module=embedding, after=(), reads=("ids", "offsets")),
            Block(name="loss", kind="loss", module=Failing(how, after), reads=("labels",)),
        ],
        recipe=Recipe(metric="none"),
    )


class BrokenClicks:
    """Clicks that cannot be read from a sample on."""

    def __init__(self, first_broken: int, **options: int) -> None:
        """Break at `first_broken`."""
        self._clicks, self._first_broken = Clicks(**options), first_broken  # type: ignore[arg-type]

    @property
    def schema(self) -> Schema:
        """Return the schema of the clicks."""
        return self._clicks.schema

    @property
    def num_samples(self) -> int | None:
        """Return how many clicks there should be."""
        return self._clicks.num_samples

    def read(self, first: int, last: int) -> Batch:
        """Return samples, or complain."""
        if last > self._first_broken:
            raise DataError(f"sample {self._first_broken} is torn", hint="mend the file")
        return self._clicks.read(first, last)


class FailWhereTold(Count):
    """Counts, unless this process was told to fail."""

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        """Fail, or count."""
        if os.environ.get("DOVETAIL_TEST_FAILS"):
            raise RuntimeError("told to fail")
        return super().forward(pooled, labels)


def fails_where_told(schema: Schema, pause_s: float = 0.0, until: str = "") -> LayerGraph:
    """Return the counting model, which fails in processes that are told to."""
    graph = counting_model(schema, pause_s)
    embedding, loss = graph.blocks
    return LayerGraph([embedding, replace(loss, module=FailWhereTold(pause_s, until=until))], recipe=graph.recipe)


def fails_in_extras(schema: Schema, pause_s: float = 0.0, until: str = "") -> LayerGraph:
    """Return the counting model, which nobody can build in a worker that the run file does not name."""
    if multiprocessing.current_process().name.startswith("extra-"):
        raise RuntimeError("told to fail in extras")
    return counting_model(schema, pause_s=pause_s, until=until)
