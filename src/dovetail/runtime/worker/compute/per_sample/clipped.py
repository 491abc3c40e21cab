"""The sum of the gradients of single samples, each cut to a norm, over dense parameters and rows together.

    sum over samples of  min(1, clip / |g_i|) g_i,      |g_i|^2 = sum over parameters and rows of their parts' squares

There is one pass forward and one back for all samples; what layers noted on the way gives the norms, and then the sum.
Where a model does not tell its samples apart, they are computed one by one, which is exact for any, and slow. Which way
it is comes from a look at the first samples, which are computed both ways: what a sample's gradient is must not hang on
how many were computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.parameters import batch_norms_of, norms_of
from dovetail.runtime.worker.compute.per_sample.contributions import Contributions, together
from dovetail.runtime.worker.compute.per_sample.layers import NotBySample, Watch, watched
from dovetail.runtime.worker.compute.per_sample.rows import SampleRows, add_squares, joined, summed, watch_table
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.tasks.task import RowGradients

Floats = NDArray[np.float64]
MOST_LOOKED_AT = 3
"""Samples that are computed both ways."""
CLOSE = 1e-3
"""By what part of the larger norms of one sample may differ between both ways."""


class ClippedGradients:
    """Makes the clipped sum of a model's batches; its dense part is added to the model's gradients."""

    def __init__(self, model: ServedModel, clip: float, tell: Callable[[str], None] = lambda _: None) -> None:
        """Watch the layers of a model whose rows are `SampleRows`; `tell` hears once of what is slower."""
        if not isinstance(model.rows, SampleRows):
            raise TypeError("gradients of single samples need rows that tell samples apart")
        self._model, self._rows, self._clip, self._tell = model, model.rows, clip, tell
        self._watch = Watch()
        self._has_looked = False
        self._why_one_by_one = ""
        """Why samples are computed one by one; empty where they are not."""
        graph = model.graph
        for norm in (*batch_norms_of(graph), *norms_of(graph)):
            raise TrainingError(
                f"a {type(norm).__name__} makes each sample's gradient hang on the others of its batch",
                hint="take nn.GroupNorm or nn.LayerNorm: a private run needs gradients of single samples",
            )
        tables = [layer for each in model.tables for layer in each.layers]
        slow = self._watch_layers(graph, tables)
        for layer in tables:
            watch_table(layer, self._rows, self._watch)
        if slow and not self._why_one_by_one:
            tell(
                f"gradients of single samples are written out for {', '.join(slow)}: there is no faster way for them "
                "yet (there is for nn.Linear, nn.Embedding and nn.LayerNorm, GroupNorm and RMSNorm)"
            )
        for parameter in model.dense:
            parameter.register_hook(self._must_not_come)  # type: ignore[no-untyped-call]

    def _watch_layers(self, graph: nn.Module, tables: list[Any]) -> list[str]:
        """Have layers note what samples contribute; return those that do it slowly."""
        slow, taken = [], {id(table) for table in tables}
        for layer, is_fast in watched(graph, set(self._model.dense), self._watch):
            if not is_fast:
                slow.append(f"`{type(layer).__name__}`")
                if any(id(each) in taken for each in layer.modules()):
                    self._go_one_by_one(f"{type(layer).__name__} has parameters of its own beside tables")
        return list(dict.fromkeys(slow))

    def _must_not_come(self, gradient: Tensor) -> Tensor:
        """Hear of a gradient that a parameter gets past its layer: nobody knows whose it is."""
        if self._watch.is_on:
            raise NotBySample("a parameter is used outside of the layer that it belongs to")
        return gradient

    def _go_one_by_one(self, why: str) -> None:
        if not self._why_one_by_one:
            self._why_one_by_one = why
            self._tell(f"samples are computed one by one, which is slow: {why}")

    # -- a batch -------------------------------------------------------------------------------------------------------

    def compute(self, batch: Batch) -> tuple[float, Any, RowGradients]:
        """Return the loss, the model's answer and the gradients of rows of a batch whose rows have begun.

        The gradients of dense parameters are added to the model's.
        """
        if not batch.num_samples:
            return 0.0, None, []
        if not self._why_one_by_one:
            try:
                return self._at_once(batch)
            except NotBySample as problem:
                self._go_one_by_one(str(problem))
            finally:
                self._watch.end()
        with torch.no_grad():
            loss, scores = self._model.outcome(batch)  # all rows are here then, whatever single samples look up
        if not self._has_looked:
            self._has_looked = self._is_as_one_by_one(batch, None)
        return float(loss), scores, self._one_by_one(batch)

    def _at_once(self, batch: Batch) -> tuple[float, Any, RowGradients]:
        """Compute all samples in one pass."""
        loss, scores = self._pass(batch, self._model.outcome)
        total = float(loss.detach())
        found, rows = self._contributions(), list(self._rows.found)
        norms = self._norms(found, batch.num_samples)
        if not self._has_looked and batch.num_samples > 1:
            self._has_looked = True
            if not self._is_as_one_by_one(batch, self._norms_at_once):
                raise NotBySample("gradients of its first samples are others in a batch than one by one")
        factors = clip_factors(norms, self._clip)
        for parameter, each in found.items():
            add_to(parameter, each.sum(torch.from_numpy(factors)))
        return total, scores, summed(rows, factors)

    def _pass(self, batch: Batch, outcome: Callable[[Batch], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """Go forward and back, with layers noting what samples contribute."""
        self._watch.begin(batch.num_samples)
        loss, scores = outcome(batch)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return loss, scores

    def _contributions(self) -> dict[Tensor, Contributions]:
        """Return what was noted, by parameter, and watch no longer."""
        noted = self._watch.contributions()
        self._watch.end()
        return {parameter: together(several) for parameter, several in noted.items()}

    def _norms(self, found: dict[Tensor, Contributions], num_samples: int) -> Floats:
        """Return the norm of each sample's gradient."""
        squares = np.zeros(num_samples, dtype=np.float64)
        for each in found.values():
            squares += each.squares().numpy()
        add_squares(self._rows.found, squares)
        return np.sqrt(squares)

    # -- one by one ----------------------------------------------------------------------------------------------------

    def _one_by_one(self, batch: Batch) -> RowGradients:
        """Add the gradients of samples that are computed one after the other; return those of rows."""
        rows: RowGradients = []
        for place in range(batch.num_samples):
            _, norm, dense, found = self._of_one(batch.slice(place, place + 1))
            factor = float(clip_factors(np.array([norm]), self._clip)[0])
            for parameter, gradient in dense:
                add_to(parameter, gradient * factor)
            rows += [(wanted, gradient * np.float32(factor)) for wanted, gradient in found]
        return joined(rows, self._rows.num_servers)

    def _of_one(self, one: Batch) -> tuple[float, float, list[tuple[nn.Parameter, Tensor]], RowGradients]:
        """Return the loss of a sample, the norm of its gradient, and its gradient: of dense parameters and of rows."""
        self._rows.begin_part()
        loss, _ = self._model.outcome_of_part(one)
        vectors, parameters = self._rows.found, self._model.dense
        wanted = [*parameters, *(each.leaf for each in vectors)]
        if not loss.requires_grad or not wanted:
            return float(loss), 0.0, [], []
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        dense = [
            (parameter, gradient)
            for parameter, gradient in zip(parameters, gradients, strict=False)
            if gradient is not None
        ]
        for each, gradient in zip(vectors, gradients[len(parameters) :], strict=True):
            each.leaf.grad, each.samples = gradient, np.zeros(len(each.leaf), dtype=np.int64)
        squares = np.array([math.fsum(float(gradient.double().square().sum()) for _, gradient in dense)])
        add_squares(vectors, squares)
        rows = summed(vectors, np.ones(1, dtype=np.float32))
        return float(loss.detach()), math.sqrt(float(squares[0])), dense, rows

    # -- a look at the first samples -----------------------------------------------------------------------------------

    def _norms_at_once(self, some: Batch) -> Floats:
        """Return the norms of some samples of a batch, computed in one pass."""
        self._rows.begin_part()
        self._pass(some, self._model.outcome_of_part)
        return self._norms(self._contributions(), some.num_samples)

    def _is_as_one_by_one(self, batch: Batch, at_once: Callable[[Batch], Floats] | None) -> bool:
        """Say whether the first samples' norms, computed at once, are those of each by itself.

        A loss that is another in a batch is refused: no sample has a gradient of its own then. Nothing is drawn by
        chance meanwhile.
        """
        some = batch.slice(0, min(MOST_LOOKED_AT, batch.num_samples))
        training = [module for module in self._model.graph.modules() if module.training]
        for module in training:
            module.training = False
        try:
            singles = [self._of_one(some.slice(place, place + 1)) for place in range(some.num_samples)]
            self._rows.begin_part()
            with torch.no_grad():
                loss = float(self._model.outcome_of_part(some)[0])
            alone = sum(each[0] for each in singles)
            if abs(loss - alone) > CLOSE * max(abs(loss), sum(abs(each[0]) for each in singles)):
                raise TrainingError(
                    f"the loss of {some.num_samples} samples is {loss:.6g} together and {alone:.6g} one by one",
                    hint="a private run needs a loss that is a sum over samples, none of which sees the others",
                )
            if at_once is None:
                return True
            norms, expected = at_once(some), np.array([each[1] for each in singles])
            return bool((np.abs(norms - expected) <= CLOSE * np.maximum(norms, expected) + 1e-12).all())
        finally:
            self._watch.end()
            for module in training:
                module.training = True


def clip_factors(norms: Floats, clip: float) -> NDArray[np.float32]:
    """Return what each sample's gradient is multiplied by: min(1, clip / norm)."""
    return (clip / np.maximum(norms, clip)).astype(np.float32)


def add_to(parameter: Tensor, gradient: Tensor) -> None:
    """Add to the gradient of a parameter, which is a part of the vector of all."""
    if parameter.grad is None:
        raise RuntimeError("a parameter has no place for its gradient")
    parameter.grad.add_(gradient.view(parameter.shape))
