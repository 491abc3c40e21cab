"""A model made ready for servers: its tables lie there, its dense parameters in one vector."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.parameters import dense_parameters, sparse_modules
from dovetail.runtime.worker.row_source import RemoteRows, Rows

AskedKeys = Callable[[Batch], Tensor]


class ServedModel:
    """A graph whose dense parameters and their gradients are views of two vectors, and whose rows come from `rows`."""

    def __init__(self, graph: LayerGraph, rows: Rows, device: torch.device) -> None:
        """Take the graph over."""
        self.graph, self.rows, self.device = graph, rows, device
        self._sparse = sparse_modules(graph)
        dense = dense_parameters(graph)
        size = sum(parameter.numel() for _, parameter in dense)
        self.values = torch.empty(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        offset = 0
        with torch.no_grad():
            for _, parameter in dense:
                part = slice(offset, offset + parameter.numel())
                self.values[part] = parameter.detach().reshape(-1).to(device)
                parameter.data = self.values[part].view(parameter.shape)
                parameter.grad = self.gradients[part].view(parameter.shape)
                offset = part.stop
        for buffer_owner in graph.modules():
            for name, buffer in buffer_owner.named_buffers(recurse=False):
                setattr(buffer_owner, name, buffer.to(device))
        for table, each in enumerate(self._sparse):
            _serve(each.module, RemoteRows(table, rows))
        self._asked = self._keys_known_ahead()

    def asked(self, batch: Batch) -> list[tuple[int, NDArray[np.int64]]]:
        """Return (table, keys) of the look-ups that a batch alone decides, so that they can be made ahead."""
        return [(table, np.ascontiguousarray(keys(batch).numpy())) for table, keys in self._asked]

    def _keys_known_ahead(self) -> list[tuple[int, AskedKeys]]:
        """Return the tables whose layer reads the batch's ids and nothing else."""
        known: list[tuple[int, AskedKeys]] = []
        for block in self.graph.blocks:
            if block.after or block.reads != ("ids", "offsets"):
                continue
            for table, each in enumerate(self._sparse):
                module = each.module
                if module is block.module and isinstance(module, SlotEmbedding):
                    known.append((table, _asked_by_slots(module)))
                elif module is block.module:
                    known.append((table, _ids))
        return known


def _asked_by_slots(module: SlotEmbedding) -> AskedKeys:
    """Return the keys that a layer will ask for."""

    def asked(batch: Batch) -> Tensor:
        ids, _ = select_slots(batch.ids, batch.offsets, module.num_slots, module.first_slot, module.last_slot)
        return ids % module.num_rows

    return asked


def _ids(batch: Batch) -> Tensor:
    """Return a batch's ids."""
    return batch.ids


def _serve(module: SlotEmbedding | nn.Embedding | nn.EmbeddingBag, source: RemoteRows) -> None:
    """Have a layer take its rows from servers, and let go of its own weight."""
    if isinstance(module, SlotEmbedding):
        module.row_source = source
    elif isinstance(module, nn.EmbeddingBag):
        module.forward = MethodType(_bag_forward(source), module)  # type: ignore[method-assign]
    else:
        module.forward = MethodType(lambda _, ids: source.rows(ids), module)  # type: ignore[method-assign]
    module.weight = nn.Parameter(module.weight.detach().to("meta"), requires_grad=False)


def _bag_forward(source: RemoteRows) -> Callable[..., Tensor]:
    """Return the forward of an `nn.EmbeddingBag` over servers."""

    def forward(module: nn.EmbeddingBag, ids: Tensor, offsets: Tensor | None = None, weights: Any = None) -> Tensor:
        if weights is not None:
            raise TrainingError("per_sample_weights are not known to servers", hint="multiply after the look-up")
        if ids.dim() == 2:
            offsets = torch.arange(0, ids.numel() + 1, ids.shape[1])
            ids = ids.reshape(-1)
        elif offsets is None or not module.include_last_offset:
            raise TrainingError(
                "an nn.EmbeddingBag gets no offsets that end with the number of ids",
                hint="build it with include_last_offset=True",
            )
        return source.look_up(ids, offsets, module.mode)

    return forward
