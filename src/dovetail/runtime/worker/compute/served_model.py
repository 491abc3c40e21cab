"""A model made ready for servers: its tables lie there, its dense parameters in one vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.ids import column_of, no_such_row
from dovetail.runtime.model.parameters import TableLayer, dense_parameters, norms_of, sparse_modules
from dovetail.runtime.worker.compute.compiled import compiled, uncompiled
from dovetail.runtime.worker.compute.low_precision import LossScale, LowParameters
from dovetail.runtime.worker.rows.batch_rows import BatchRows, ServedRows
from dovetail.runtime.worker.rows.prefetch import pattern_of
from dovetail.runtime.worker.rows.table_layers import serve, without_padding
from dovetail.spec.run import Precision

AskedKeys = Callable[[Batch], Tensor | None]


class ServedModel:
    """A model whose dense parameters and their gradients are views of two vectors, and whose rows come from `rows`."""

    def __init__(
        self,
        model: Model,
        rows: BatchRows,
        device: torch.device,
        *,
        schema: Schema | None = None,
        only: Collection[str] | None = None,
        last: int | None = None,
        precision: Precision = "float32",
        compiles: bool = False,
    ) -> None:
        """Take the model over; `schema` names the columns of its data.

        Of the dense parameters the vectors hold those in `only`, and the memory of others is given back. What blocks
        after `last` look up is not fetched ahead: others run them. One that `compiles` does so with the second batch.
        """
        self.graph, self.rows, self.device, self.compiles = model, rows, device, compiles
        self._outcome = compiled(model.outcome) if compiles else model.outcome
        self._has_begun = False
        self._precision = precision
        if precision != "float32":
            torch.set_float32_matmul_precision("high")
        self._schema = schema
        self._sparse = sparse_modules(model)
        dense = dense_parameters(model)
        if only is not None:
            for name, parameter in dense:
                if name not in only:
                    parameter.data = parameter.data.new_empty(0)
            dense = [(name, parameter) for name, parameter in dense if name in only]
        self.dense = [parameter for _, parameter in dense]
        """Those that the vectors hold, in their order."""
        self._lay_out(precision)
        with torch.no_grad():
            for table, each in enumerate(self._sparse):
                for layer in each.layers:
                    serve(layer, self._source_of(table, layer))
            for parameter in model.parameters():
                if not parameter.requires_grad and not parameter.is_meta:
                    parameter.data = parameter.data.to(device)
        for buffer_owner in model.modules():
            for name, buffer in buffer_owner.named_buffers(recurse=False):
                setattr(buffer_owner, name, buffer.to(device))
        self._asked: list[tuple[int, AskedKeys]] | None = (
            self._keys_known_ahead(model.blocks if last is None else model.blocks[: last + 1])
            if isinstance(model, LayerGraph)
            else None
        )
        self._batch: Batch | None = None
        self.normalises_alone = True
        """Whether batch norms see this batch only."""
        self._norms = [norm for norm in norms_of(model) if norm.training]

    def _lay_out(self, precision: Precision) -> None:
        """Have the dense parameters and their gradients lie in two vectors."""
        device = self.device
        size = sum(parameter.numel() for parameter in self.dense)
        self.values = torch.empty(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self._low = LowParameters()
        is_half = precision == "float16" or any(parameter.dtype == torch.float16 for parameter in self.dense)
        self.loss_scale = LossScale() if is_half else None
        """What losses are multiplied by where float16 is computed with."""
        offset = 0
        with torch.no_grad():
            for parameter in self.dense:
                part = slice(offset, offset + parameter.numel())
                self.values[part] = parameter.detach().reshape(-1).to(device)
                values, gradients = (vector[part].view(parameter.shape) for vector in (self.values, self.gradients))
                if parameter.dtype == torch.float32:
                    parameter.data, parameter.grad = values, gradients
                else:
                    self._low.add(parameter, values, gradients)
                offset = part.stop

    def computing(self) -> AbstractContextManager[Any]:
        """Return what a forward pass is done in: with bfloat16 or float16, layers for which that is good compute in it.

        Parameters of lower precision have their masters' values from then on.
        """
        self._low.refresh()
        if self._precision in ("bfloat16", "float16"):
            return torch.autocast(self.device.type, getattr(torch, self._precision))
        return nullcontext()

    def asked(self, batch: Batch) -> list[tuple[int, NDArray[np.int64]]]:
        """Return (table, keys) of the look-ups that a batch alone decides, so that they can be made ahead."""
        found = [(table, keys(batch)) for table, keys in self._asked or []]
        asked = [(table, np.ascontiguousarray(keys.numpy())) for table, keys in found if keys is not None]
        return [(table, keys) for table, keys in asked if self._has_all(table, keys)]

    def _has_all(self, table: int, keys: NDArray[np.int64]) -> bool:
        """Say whether a table has rows for all keys: servers refuse others, and the model says of which column."""
        module = self._sparse[table].module
        if isinstance(module, SlotEmbedding) or not len(keys):
            return True  # it takes any id
        return bool(keys.min() >= 0 and keys.max() < module.num_embeddings)

    def outcome(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss, summed over the samples of a batch that is on the device, and the model's answer."""
        self._batch = batch
        if self._norms and batch.num_samples == 1 and self.normalises_alone:
            return self._outcome_of_one(batch)
        if self._asked is not None and self._has_begun:
            return self._outcome(batch)
        self._has_begun = True
        if self._asked is not None:
            return self.graph.outcome(batch)
        with self._watched(batch) as seen:
            result = self.graph.outcome(batch)
        self._asked = seen
        return result

    def _outcome_of_one(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the outcome of a single sample, which has no spread: it is normalised by the running statistics."""
        for norm in self._norms:
            norm.eval()
        try:
            return self.graph.outcome(batch)
        finally:
            for norm in self._norms:
                norm.train()

    def _source_of(self, table: int, layer: TableLayer) -> ServedRows:
        """Return the rows of a table; a layer of PyTorch's refuses ids that it has no row for, as PyTorch does."""
        source = self._bare_source_of(table, layer)
        if self.compiles:
            source.look_up, source.rows = uncompiled(source.look_up), uncompiled(source.rows)  # type: ignore[method-assign]
        return source

    def _bare_source_of(self, table: int, layer: TableLayer) -> ServedRows:
        """Return the rows of a table."""
        if isinstance(layer, SlotEmbedding):
            return self.rows.source(table)

        def refuse(key: int) -> None:
            known = self._batch is not None and self._schema is not None
            column = column_of(key, self._batch, self._schema) if known else None  # type: ignore[arg-type]
            raise no_such_row(key, layer.num_embeddings, column)

        if layer.max_norm is not None:
            self.rows.limit(table, layer.max_norm, layer.norm_type)
        return self.rows.source(table, num_rows=layer.num_embeddings, refuse=refuse)

    @contextmanager
    def _watched(self, batch: Batch) -> Iterator[list[tuple[int, AskedKeys]]]:
        """Note which look-ups of the tables the batch alone decides."""
        seen: list[tuple[int, AskedKeys]] = []

        def watch(table: int) -> Callable[..., None]:
            def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
                if not arguments or not isinstance(arguments[0], Tensor):
                    return
                if not isinstance(layer, SlotEmbedding):
                    if (pattern := pattern_of(arguments[0], batch)) is not None:
                        seen.append((table, _without_padding(pattern.keys, layer)))
                elif type(layer).forward is SlotEmbedding.forward and arguments[0] is batch.ids:
                    seen.append((table, _asked_by_slots(layer)))

            return note

        handles = [
            layer.register_forward_pre_hook(watch(table))
            for table, each in enumerate(self._sparse)
            for layer in each.layers
        ]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _keys_known_ahead(self, blocks: Sequence[Block]) -> list[tuple[int, AskedKeys]]:
        """Return the tables whose layer reads the batch's ids and nothing else."""
        known: list[tuple[int, AskedKeys]] = []
        for block in blocks:
            if block.after or block.reads != ("ids", "offsets"):
                continue
            for table, each in enumerate(self._sparse):
                module = each.module
                if module is block.module and isinstance(module, SlotEmbedding):
                    known.append((table, _asked_by_slots(module)))
                elif module is block.module:
                    known.append((table, _without_padding(_ids, module)))
        return known


def _asked_by_slots(module: SlotEmbedding) -> AskedKeys:
    """Return the keys that a layer will ask for."""

    def asked(batch: Batch) -> Tensor:
        ids, _ = select_slots(batch.ids, batch.offsets, module.num_slots, module.first_slot, module.last_slot)
        return ids % module.num_rows

    return asked


def _without_padding(asked: AskedKeys, layer: nn.Module) -> AskedKeys:
    """Return the keys that a layer of PyTorch's asks for among those that it is given."""
    padding: int | None = getattr(layer, "padding_idx", None)
    if padding is None:
        return asked

    def without(batch: Batch) -> Tensor | None:
        keys = asked(batch)
        return None if keys is None else without_padding(keys, padding)

    return without


def _ids(batch: Batch) -> Tensor:
    """Return a batch's ids."""
    return batch.ids
