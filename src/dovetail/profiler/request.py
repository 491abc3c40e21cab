"""What is to be profiled: a model, the data it reads, and the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.data import Batch, Matches, Source, load_data
from dovetail.errors import DovetailError
from dovetail.models import LayerGraph, ModelError, load_model
from dovetail.models.recipe import RECIPES
from dovetail.models.task import infer_loss

NUM_BATCHES = 8
"""How many different batches take turns, so that rows are as cold as fresh data's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Names and options that any process can build the same model and batches from."""

    model: str
    batch: int
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "clicks"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    seed: int = 0

    def build(self) -> tuple[LayerGraph, list[Batch]]:
        """Return the model for the data's schema, and batches of the full size."""
        if self.batch < 8:
            raise DovetailError(
                f"a batch of {self.batch} is too small to profile", hint="give --batch 8 or more, e.g. 1024"
            )
        source = self._source()
        options = {"schema": source.schema} | dict(self.model_options)
        if self.model == "matchnet" and isinstance(source, Matches):
            options.setdefault("items", source.items())
        graph = load_model(self.model, seed=self.seed, **options)
        for name, one, other in graph.ties():
            raise ModelError(
                f"layers `{one}` and `{other}` share the parameter `{name}`, and a plan might cut between them",
                hint="put both uses into one layer; to train, cut it by hand with [[stage]], both in one stage",
            )
        if ":" in self.model and "loss" not in options:
            graph = self._with_loss(graph, source.read(0, self.batch), options)
        batches = [source.read(turn * self.batch, (turn + 1) * self.batch) for turn in range(NUM_BATCHES)]
        return graph, batches

    def _source(self) -> Source:
        """Return the data."""
        data_options = dict(self.data_options)
        if self.data == "clicks" and self.model in RECIPES:
            data_options.setdefault("truth", RECIPES[self.model].truth)
        return load_data(self.data, **data_options)

    def num_samples(self) -> int | None:
        """Return how many samples the data have; None where they have no end."""
        return self._source().num_samples

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield the first batches of the data, as many of `count` as there are."""
        source = self._source()
        there = count if source.num_samples is None else min(count, source.num_samples // self.batch)
        for turn in range(there):
            yield source.read(turn * self.batch, (turn + 1) * self.batch)

    def _with_loss(self, graph: LayerGraph, batch: Batch, options: dict[str, Any]) -> LayerGraph:
        """Return a user's own model with the loss that labels and answers tell.

        Several numbers a sample and one label are classes, whichever of them these samples have: nobody learns here.
        """
        with torch.no_grad():
            scores = graph.predict(batch)
        are_classes = scores.dim() == 2 and scores.shape[1] > 2 and batch.labels.dim() == 1
        loss = "cross-entropy" if are_classes else str(infer_loss(scores, batch.labels))
        return graph if loss == graph.recipe.loss else load_model(self.model, seed=self.seed, loss=loss, **options)

    def optimizer_for(self, graph: LayerGraph) -> str:
        """Return the optimizer asked for, or the model's own."""
        return self.optimizer or graph.recipe.optimizer


def first_samples(batches: list[Batch], count: int) -> list[Batch]:
    """Return batches of the first `count` samples of each."""
    return [batch.slice(0, count) for batch in batches]
