"""A model made ready for servers: its tables lie there, its dense parameters in one vector."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.data.streams import stream_number
from dovetail.models.embedding import RowSource, SlotEmbedding
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.model.build import Model, build_model
from dovetail.runtime.model.frozen import read_fixed, read_newest_statistics
from dovetail.runtime.model.ids import check_ids
from dovetail.runtime.model.parameters import TableLayer, dense_parameters, norms_of, sparse_modules
from dovetail.runtime.model.stages import Cut, cuts_of
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.compiled import can_compile, compiled, uncompiled
from dovetail.runtime.worker.compute.low_precision import LossScale, LowParameters
from dovetail.runtime.worker.compute.per_sample.rows import SampleRows
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.rows.prefetch import KeyPrefetch
from dovetail.runtime.worker.rows.table_layers import serve
from dovetail.spec.run import Precision, RunWorker


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
        normalises_alone: bool = True,
    ) -> None:
        """Take the model over; `schema` names the columns of its data.

        Of the dense parameters the vectors hold those in `only`, and the memory of others is given back. What blocks
        after `last` look up is not fetched ahead: others run them. One that `compiles` does so with the second batch.
        Where it `normalises_alone`, batch norms see a worker's own batch only.
        """
        self.graph, self.rows, self.device, self.compiles = model, rows, device, compiles
        self._outcome = compiled(model.outcome) if compiles else model.outcome
        self._has_begun = False
        self._precision = precision
        if precision != "float32":
            torch.set_float32_matmul_precision("high")
        self._schema = schema
        self.tables = sparse_modules(model)
        """The tables whose rows come from `rows`, by their numbers."""
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
            for table, each in enumerate(self.tables):
                for layer in each.layers:
                    serve(layer, self._source_of(table, layer))
            for parameter in model.parameters():
                if not parameter.requires_grad and not parameter.is_meta:
                    parameter.data = parameter.data.to(device)
        for buffer_owner in model.modules():
            for name, buffer in buffer_owner.named_buffers(recurse=False):
                setattr(buffer_owner, name, buffer.to(device))
        blocks = model.blocks[: None if last is None else last + 1] if isinstance(model, LayerGraph) else None
        self._prefetch = KeyPrefetch(self.tables, blocks)
        self._batch: Batch | None = None
        self._norms = [norm for norm in norms_of(model) if norm.training] if normalises_alone else []
        """Those that a single sample is too little for."""

    @property
    def layer_graph(self) -> LayerGraph:
        """The model, which is one that can be cut."""
        if not isinstance(self.graph, LayerGraph):
            raise TypeError("a model that is cut is a graph of layers")
        return self.graph

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
        return self._prefetch.asked(batch)

    def outcome(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss, summed over the samples of a batch that is on the device, and the model's answer."""
        self._batch = batch
        if self._norms and batch.num_samples == 1:
            return self._outcome_of_one(batch)
        if self._prefetch.is_known and self._has_begun:
            return self._outcome(batch)
        self._has_begun = True
        with self._prefetch.learning(batch):
            return self.graph.outcome(batch)

    def outcome_of_part(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the same of samples of a batch whose outcome was asked for: what it looks up is known."""
        self._batch = batch
        return self.graph.outcome(batch)

    def _outcome_of_one(self, batch: Batch) -> tuple[Tensor, Any]:
        """Return the outcome of a single sample, which has no spread: it is normalised by the running statistics."""
        for norm in self._norms:
            norm.eval()
        try:
            return self.graph.outcome(batch)
        finally:
            for norm in self._norms:
                norm.train()

    def _source_of(self, table: int, layer: TableLayer) -> RowSource:
        """Return the rows of a table; a layer of PyTorch's refuses ids that it has no row for, as PyTorch does."""
        if isinstance(layer, SlotEmbedding):
            source = self.rows.source(table)
        else:
            num_rows = layer.num_embeddings
            source = self.rows.source(table, lambda keys: check_ids(keys, num_rows, self._batch, self._schema))
            if layer.max_norm is not None:
                self.rows.limit(table, layer.max_norm, layer.norm_type)
        if self.compiles:
            source.look_up, source.rows = uncompiled(source.look_up), uncompiled(source.rows)  # type: ignore[method-assign]
        return source


def load_served_model(
    process: Process, settings: RunWorker, source: Source, own: nn.Module | None = None
) -> tuple[ServedModel, Cut | None]:
    """Return the model of a worker, in training, and the part of it that is its stage's where the run is cut.

    The dense vectors have the parameters of that part; where servers keep them, a first stage gathers those of all.
    """
    blueprint, device = process.blueprint, torch.device(settings.device)
    training = blueprint.run.training
    torch.set_num_threads(settings.threads)
    torch.manual_seed(stream_number(training.seed, f"worker/{process.name}") >> 1)
    model = build_model(blueprint.run, source.schema, own)
    read_fixed(model, process.folder, blueprint.fixed)
    read_newest_statistics(model, process.folder)
    cut = cuts_of(model, blueprint)[settings.stage] if blueprint.stages and isinstance(model, LayerGraph) else None
    has_part = cut is not None and (settings.stage > 0 or training.dense == "ring")
    served = ServedModel(
        model.train(),
        BatchRows(blueprint.num_servers, device) if blueprint.private is None else SampleRows(blueprint.num_servers),
        device,
        schema=source.schema,
        only=cut.names if cut is not None and has_part else None,
        last=cut.last if cut is not None else None,
        precision=settings.precision,
        compiles=training.compile and can_compile(device, process.log),
        normalises_alone=training.batch_norm != "global",
    )
    return served, cut
