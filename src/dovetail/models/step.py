"""Training in one process: optimizers by name, and the step that every distributed step must equal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dovetail.data.batch import Batch
from dovetail.errors import did_you_mean
from dovetail.models.embedding import SlotEmbedding
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.metrics import Metric
from dovetail.references import import_function

Parameters = list[nn.Parameter]
Maker = Callable[[Parameters, float], Optimizer]

MOMENTUM = 0.9
"""The usual one: a gradient is felt for about ten steps."""
DENSE: dict[str, Maker] = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM),
    "adagrad": lambda parameters, rate: torch.optim.Adagrad(parameters, lr=rate),
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
    "adamw": lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate),
}
SPARSE: dict[str, Maker] = {
    "sgd": DENSE["sgd"],
    "momentum": DENSE["sgd"],
    "adagrad": DENSE["adagrad"],
    "adam": lambda parameters, rate: torch.optim.SparseAdam(parameters, lr=rate),
    "adamw": lambda parameters, rate: torch.optim.SparseAdam(parameters, lr=rate),
}
"""What updates embedding rows: only touched rows, so no momentum and no decay of rows that a batch does not touch."""


class ModelOptimizer:
    """One optimizer for the dense parameters and one for the embedding rows, stepped together."""

    def __init__(self, parts: Iterable[Optimizer]) -> None:
        """Keep the parts and the learning rates they start from."""
        self.parts = tuple(parts)
        self._rates = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self, factor: float = 1.0) -> None:
        """Update all parameters with `factor` times their learning rates."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
            with unchecked:  # said aloud, else PyTorch warns
                part.step()

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of the parts."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Take back a copy of what `state_dict` returned."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(copy.deepcopy(state))  # PyTorch would go on sharing the tensors


def make_optimizer(model: nn.Module, name: str, learning_rate: float) -> ModelOptimizer:
    """Return an optimizer of all parameters: one of `sgd`, `momentum`, `adagrad`, `adam`, `adamw`.

    `package.module:function` is called with (parameters, learning_rate) for the dense ones; embedding rows then use
    `adagrad`.
    """
    if not learning_rate > 0:
        raise ModelError(f"the learning rate is {learning_rate}", hint="set it to a number above zero, e.g. 0.001")
    if ":" in name:
        dense_maker: Maker = import_function(name, what="optimizer", error=ModelError)
        sparse_maker = SPARSE["adagrad"]
    elif name in DENSE:
        dense_maker, sparse_maker = DENSE[name], SPARSE[name]
    else:
        raise ModelError(f"there is no optimizer `{name}`", hint=did_you_mean(name, DENSE))
    sparse = [parameter for module in model.modules() if _is_sparse(module) for parameter in module.parameters()]
    known = {id(parameter) for parameter in sparse}
    dense = [parameter for parameter in model.parameters() if id(parameter) not in known and parameter.requires_grad]
    parts = [dense_maker(dense, learning_rate)] if dense else []
    return ModelOptimizer([*parts, *([sparse_maker(sparse, learning_rate)] if sparse else [])])


def _is_sparse(module: nn.Module) -> bool:
    """Say whether a module's gradients are sparse."""
    return isinstance(module, SlotEmbedding) or (
        isinstance(module, nn.Embedding | nn.EmbeddingBag) and bool(module.sparse)
    )


def train_step(graph: LayerGraph, batch: Batch, optimizer: ModelOptimizer, *, factor: float = 1.0) -> float:
    """Update the model once and return the batch's loss, summed over its samples.

    The gradient is that of the sum, divided by the samples of the whole batch.
    """
    optimizer.zero_grad()
    loss = graph(batch)
    total = float(loss.detach())
    if math.isnan(total):
        raise ModelError("the loss is not a number", hint="lower the learning rate, or look for broken samples")
    (loss / batch.num_samples).backward()
    optimizer.step(factor)
    return total


def evaluate(
    graph: LayerGraph,
    batches: Iterable[Batch],
    metric: Metric,
    *,
    score: Callable[[LayerGraph, Batch], Tensor] | None = None,
    target: Callable[[Batch], Tensor] | None = None,
) -> float:
    """Return the metric of the model's answers over `batches`, dropout off and without gradients.

    `score` and `target` are the model's answer and the batch's labels unless others are given, as ranking models need.
    """
    was_training = graph.training
    graph.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                scores = graph.predict(batch) if score is None else score(graph, batch)
                metric.update(scores, batch.labels if target is None else target(batch))
    finally:
        graph.train(was_training)
    return metric.value()
