"""Which rows a batch will look up, known before the model runs: learnt by watching it once, or read off its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dovetail.data.batch import Batch
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.parameters import sparse_modules


@dataclass(frozen=True, slots=True)
class IdPattern:
    """A view of a batch's ids: all of them, or the same few of every sample."""

    per_sample: int | None
    """Ids that each sample has; None where the view is all ids, whatever their number."""
    shape: tuple[int, ...] = ()
    """Of the view, without the samples."""
    stride: tuple[int, ...] = ()
    offset: int = 0

    def keys(self, batch: Batch) -> Tensor | None:
        """Return the ids of another batch that the same view would show; None where it has no such view."""
        if self.per_sample is None:
            return batch.ids
        if batch.ids.numel() != batch.num_samples * self.per_sample or not batch.num_samples:
            return None
        view = batch.ids.as_strided(
            (batch.num_samples, *self.shape), (self.per_sample, *self.stride), batch.ids.storage_offset() + self.offset
        )
        return view.reshape(-1)


def pattern_of(ids: Tensor, batch: Batch) -> IdPattern | None:
    """Return what view of a batch's ids some tensor is; None where it is none."""
    whole = batch.ids
    same_memory = ids.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    if not whole.numel() or ids.dtype != whole.dtype or not same_memory:
        return None
    if ids.numel() == whole.numel() and ids.data_ptr() == whole.data_ptr() and ids.is_contiguous():
        return IdPattern(per_sample=None)
    per_sample = whole.numel() // batch.num_samples
    if ids.dim() < 1 or ids.shape[0] != batch.num_samples or per_sample * batch.num_samples != whole.numel():
        return None
    if ids.stride()[0] != per_sample and batch.num_samples > 1:
        return None
    offset = int(ids.storage_offset() - whole.storage_offset())
    return IdPattern(per_sample=per_sample, shape=tuple(ids.shape[1:]), stride=ids.stride()[1:], offset=offset)


IDS = ("ids", "offsets")
"""What a layer reads whose look-ups are known."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchableLookUp:
    """A layer and the table that it looks up in."""

    table: int
    layer: SlotEmbedding

    def asked(self, batch: Batch) -> tuple[NDArray[np.int64], Tensor | None]:
        """Return the keys that the layer will ask for, and where its bags begin; None where each bag is one key."""
        layer = self.layer
        ids, offsets = select_slots(batch.ids, batch.offsets, layer.num_slots, layer.first_slot, layer.last_slot)
        keys = np.ascontiguousarray((ids % layer.num_rows).numpy())
        is_flat = len(keys) == len(offsets) - 1 and bool((offsets.diff() == 1).all())
        return keys, None if is_flat else offsets

    def take_from(self, values: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
        """Have the layer's answers made of these: one vector a key that it asks for, and where its bags begin."""

        def forward(layer: SlotEmbedding, *_: Tensor) -> Tensor:
            found, begins = values()
            if begins is not None:
                places = torch.arange(len(found), device=found.device)
                found = functional.embedding_bag(places, found, begins, mode=layer.mode, include_last_offset=True)
            return found.reshape(-1, (layer.last_slot - layer.first_slot) * layer.width)

        self.layer.forward = MethodType(forward, self.layer)  # type: ignore[method-assign]


def prefetchable_look_ups(model: Model) -> Sequence[PrefetchableLookUp] | str:
    """Return all look-ups of a model in the order of its layers; or, where others cannot be excluded, why."""
    if not isinstance(model, LayerGraph):
        return "a model of your own runs as it is, and may look up whatever it likes"
    tables = {id(layer): number for number, each in enumerate(sparse_modules(model)) for layer in each.layers}
    blocks = [block for block in model.blocks if not block.after and block.reads == IDS and id(block.module) in tables]
    uses = Counter(id(module) for block in model.blocks for module in block.module.modules() if id(module) in tables)
    if not tables:
        return "the model has no embedding tables"
    if len(uses) != len(tables) or set(uses.values()) != {1} or len(blocks) != len(tables):
        return "the model looks rows up that its data alone do not decide"
    found = []
    for block in blocks:
        layer = block.module
        if not isinstance(layer, SlotEmbedding) or type(layer).forward is not SlotEmbedding.forward:
            return f"layer `{block.name}` is a {type(layer).__name__}, which looks rows up in its own way"
        found.append(PrefetchableLookUp(tables[id(layer)], layer))
    return found


def fields_beside(model: Model) -> tuple[str, ...]:
    """Return what the layers read of a batch that do not look rows up."""
    if not isinstance(model, LayerGraph):
        return ()
    tables = {id(layer) for each in sparse_modules(model) for layer in each.layers}
    read = [name for block in model.blocks if id(block.module) not in tables for name in block.reads]
    return tuple(dict.fromkeys(read))
