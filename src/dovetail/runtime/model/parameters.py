"""Which parameters of a model are tables on servers, and how the others lie in one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dovetail.models.embedding import SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.blueprint import DenseEntry, TableSpec
from dovetail.runtime.errors import TrainingError


@dataclass(frozen=True, slots=True)
class SparseModule:
    """A layer whose weight is a table on the servers."""

    name: str
    module: SlotEmbedding | nn.Embedding | nn.EmbeddingBag

    def spec(self) -> TableSpec:
        """Return the table."""
        num_rows, width = self.module.weight.shape
        return TableSpec(name=self.name, width=width, num_rows=num_rows, scale=1.0 / 3.0 / math.sqrt(width))


def sparse_modules(graph: LayerGraph) -> list[SparseModule]:
    """Return the layers whose rows lie on servers: Dovetail's, and PyTorch's with sparse gradients."""
    found = []
    for name, module in graph.named_modules():
        if isinstance(module, SlotEmbedding):
            found.append(SparseModule(name, module))
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            if module.padding_idx is not None or getattr(module, "max_norm", None) is not None:
                raise TrainingError(
                    f"layer `{name}` has padding_idx or max_norm, which servers do not know",
                    hint="build it without them, or with sparse=False as a dense parameter",
                )
            if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
                raise TrainingError(f"layer `{name}` pools by max", hint="choose mode sum or mean")
            found.append(SparseModule(name, module))
    return found


def dense_parameters(graph: LayerGraph) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are not tables, each once, under the names they have in the model."""
    sparse = {id(each.module.weight) for each in sparse_modules(graph)}
    found = []
    for name, parameter in graph.named_parameters():
        if id(parameter) in sparse or not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise TrainingError(
                f"parameter `{name}` is {str(parameter.dtype).removeprefix('torch.')}", hint="servers keep float32"
            )
        found.append((name, parameter))
    for name, module in graph.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise TrainingError(
                f"layer `{name}` averages over a batch that is spread over workers",
                hint="use nn.LayerNorm, or track_running_stats=False",
            )
    return found


def dense_entries(graph: LayerGraph) -> tuple[DenseEntry, ...]:
    """Return where each dense parameter lies in the one vector."""
    entries, offset = [], 0
    for name, parameter in dense_parameters(graph):
        entries.append(DenseEntry(name=name, shape=tuple(parameter.shape), offset=offset))
        offset += parameter.numel()
    return tuple(entries)


def dense_values(graph: LayerGraph) -> NDArray[np.float32]:
    """Return the dense parameters as one vector."""
    parts = [parameter.detach().reshape(-1) for _, parameter in dense_parameters(graph)]
    return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.float32)
