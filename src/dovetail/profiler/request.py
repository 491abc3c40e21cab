"""What is to be profiled: a model, the data it reads, and the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.data import Batch, Matches, Source, load_data
from dovetail.errors import DovetailError
from dovetail.models import LayerGraph, ModelError, load_model
from dovetail.models.load import load_whole, one_loss
from dovetail.models.recipe import RECIPES
from dovetail.models.undivided import told_loss, undivided

Say = Callable[[str], None]
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

    def build(self, say: Say = lambda _: None) -> tuple[LayerGraph, list[Batch]]:
        """Return the model for the data's schema, and batches of the full size; `say` hears what is one layer, why."""
        if self.batch < 8:
            raise DovetailError(
                f"a batch of {self.batch} is too small to profile", hint="give --batch 8 or more, e.g. 1024"
            )
        source = self._source()
        options = {"schema": source.schema} | dict(self.model_options)
        if self.model == "matchnet" and isinstance(source, Matches):
            options.setdefault("items", source.items())
        if ":" in self.model:
            graph = self._own(source.read(0, self.batch), options, say)
        else:
            graph = load_model(self.model, seed=self.seed, **options)
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

    def _own(self, batch: Batch, options: dict[str, Any], say: Say) -> LayerGraph:
        """Return a user's own model in layers, or as one where a plan could not cut it."""
        try:
            graph = load_model(self.model, seed=self.seed, **options)
            for name, one, other in graph.ties():
                raise ModelError(
                    f"layers `{one}` and `{other}` share the parameter `{name}`, and a plan might cut between them",
                    hint="put both uses into one layer; to train, cut it by hand with [[stage]], both in one stage",
                )
            if "loss" in options:
                return graph
            with torch.no_grad():
                loss = told_loss(graph.predict(batch), batch.labels)
            if loss == graph.recipe.loss:
                return graph
            return load_model(self.model, seed=self.seed, loss=one_loss(loss), **options)
        except ModelError as problem:
            whole = load_whole(self.model, seed=self.seed, **options)
            if isinstance(whole, LayerGraph):
                raise  # it was cut by its user
            say(f"the model is one layer, which no plan cuts: {problem}")
            return undivided(whole, batch, loss=options.get("loss"))

    def optimizer_for(self, graph: LayerGraph) -> str:
        """Return the optimizer asked for, or the model's own."""
        return self.optimizer or graph.recipe.optimizer


def first_samples(batches: list[Batch], count: int) -> list[Batch]:
    """Return batches of the first `count` samples of each."""
    return [batch.slice(0, count) for batch in batches]
