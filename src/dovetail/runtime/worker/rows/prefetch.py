"""Which rows a batch will look up, known before the model runs: learnt by watching it once, or read off its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dovetail.data.batch import Batch
from dovetail.models.block import Block
from dovetail.models.embedding import SlotEmbedding, select_slots
from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.parameters import SparseModule, sparse_modules
from dovetail.runtime.worker.rows.keys import is_one_each, keys_within
from dovetail.runtime.worker.rows.table_layers import without_padding

AskedKeys = Callable[[Batch], Tensor | None]
"""Which keys a layer will ask for; None where a batch is unlike those that were seen."""
IDS = ("ids", "offsets")
"""What a layer reads whose look-ups are known."""


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


class KeyPrefetch:
    """The look-ups of a model that a batch alone decides, so that they can be made ahead.

    Those of a graph are read off its layers. What another model looks up is learnt by watching it once, a guess that
    costs nothing when it is wrong: rows that a model asks for and that are not here yet are fetched when it asks.
    """

    def __init__(self, tables: Sequence[SparseModule], blocks: Sequence[Block] | None) -> None:
        """Read them off the blocks of a graph; None where the model is none."""
        self._tables = tables
        self._known = None if blocks is None else [*_read_off(blocks, tables)]

    @property
    def is_known(self) -> bool:
        """Say whether there is nothing to learn any more."""
        return self._known is not None

    def asked(self, batch: Batch) -> list[tuple[int, NDArray[np.int64]]]:
        """Return (table, keys) of each look-up of a batch."""
        found = [(table, keys(batch)) for table, keys in self._known or []]
        asked = [(table, np.ascontiguousarray(keys.numpy())) for table, keys in found if keys is not None]
        return [(table, keys) for table, keys in asked if self._has_all(table, keys)]

    def _has_all(self, table: int, keys: NDArray[np.int64]) -> bool:
        """Say whether a table has rows for all keys: servers refuse others, and the model says of which column."""
        module = self._tables[table].module
        if isinstance(module, SlotEmbedding) or not len(keys):
            return True  # it takes any id
        return bool(keys.min() >= 0 and keys.max() < module.num_embeddings)

    @contextmanager
    def learning(self, batch: Batch) -> Iterator[None]:
        """Note which look-ups a model makes of a batch within the block, where that is not known."""
        if self.is_known:
            yield
            return
        seen: list[tuple[int, AskedKeys]] = []

        def watch(table: int) -> Callable[..., None]:
            def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
                if not arguments or not isinstance(arguments[0], Tensor):
                    return
                if not isinstance(layer, SlotEmbedding):
                    if (pattern := pattern_of(arguments[0], batch)) is not None:
                        seen.append((table, _without_padding(pattern.keys, layer)))
                elif type(layer).forward is SlotEmbedding.forward and arguments[0] is batch.ids:
                    seen.append((table, _keys_of(layer)))

            return note

        handles = [
            layer.register_forward_pre_hook(watch(table))
            for table, each in enumerate(self._tables)
            for layer in each.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._known = seen


def _read_off(blocks: Sequence[Block], tables: Sequence[SparseModule]) -> Iterator[tuple[int, AskedKeys]]:
    """Yield the tables whose layer reads the batch's ids and nothing else."""
    for block in blocks:
        if block.after or block.reads != IDS:
            continue
        for table, each in enumerate(tables):
            module = each.module
            if module is block.module and isinstance(module, SlotEmbedding):
                yield table, _keys_of(module)
            elif module is block.module:
                yield table, _without_padding(lambda batch: batch.ids, module)


def _keys_of(layer: SlotEmbedding) -> AskedKeys:
    """Return what says which keys a layer will ask for."""
    return lambda batch: slot_keys(layer, batch)[0]


def slot_keys(layer: SlotEmbedding, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the keys that a layer will ask for, and where its bags begin."""
    ids, offsets = select_slots(batch.ids, batch.offsets, layer.num_slots, layer.first_slot, layer.last_slot)
    return ids % layer.num_rows, offsets


def _without_padding(asked: AskedKeys, layer: nn.Module) -> AskedKeys:
    """Return the keys that a layer of PyTorch's asks for among those that it is given."""
    padding: int | None = getattr(layer, "padding_idx", None)
    if padding is None:
        return asked

    def without(batch: Batch) -> Tensor | None:
        keys = asked(batch)
        return None if keys is None else without_padding(keys, padding)

    return without


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchableLookUp:
    """A layer and the table that it looks up in."""

    table: int
    layer: SlotEmbedding

    def asked(self, batch: Batch) -> tuple[NDArray[np.int64], Tensor | None]:
        """Return the keys that the layer will ask for, and where its bags begin; None where each bag is one key."""
        layer = self.layer
        ids, offsets = select_slots(batch.ids, batch.offsets, layer.num_slots, layer.first_slot, layer.last_slot)
        keys = keys_within(ids.numpy(), layer.num_rows)
        is_flat = len(keys) == len(offsets) - 1 and bool(is_one_each(offsets.numpy()))
        return keys, None if is_flat else offsets

    def take_from(self, values: Callable[[], tuple[Tensor, Tensor | None, int]]) -> None:
        """Have the layer's answers made of these: one vector a key that it asks for, and where its bags begin.

        Last comes the number of samples: bags beyond theirs are nobody's.
        """

        def forward(layer: SlotEmbedding, *_: Tensor) -> Tensor:
            found, begins, num_samples = values()
            slots = layer.last_slot - layer.first_slot
            if begins is not None:
                found = PooledBags.apply(found, begins, layer.mode)[: num_samples * slots]  # type: ignore[no-untyped-call]
            return found.reshape(-1, slots * layer.width)

        self.layer.forward = MethodType(forward, self.layer)  # type: ignore[method-assign]


class PooledBags(torch.autograd.Function):
    """One vector a bag of neighbours; gradients go to each by its bag, without a search: a CUDA graph can hold it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, begins: Tensor, mode: str) -> Tensor:
        """Pool values[begins[b] : begins[b + 1]] for each bag b."""
        places = torch.arange(len(values), device=values.device)
        bags = torch.searchsorted(begins, places, right=True).sub_(1)
        ctx.save_for_backward(bags, begins.diff() if mode == "mean" else None)
        return functional.embedding_bag(places, values, begins, mode=mode, include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of each value: that of its bag, or its part of it."""
        bags, lengths = ctx.saved_tensors
        found = gradients[0][bags]
        return found if lengths is None else found / lengths[bags][:, None], None, None


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


def fields_beside(model: Model, look_ups: Sequence[PrefetchableLookUp]) -> tuple[str, ...]:
    """Return what the layers read of a batch that do not look rows up."""
    if not isinstance(model, LayerGraph):
        return ()
    tables = {id(look_up.layer) for look_up in look_ups}
    read = [name for block in model.blocks if id(block.module) not in tables for name in block.reads]
    return tuple(dict.fromkeys(read))


def rows_of_ids(model: Model) -> int | None:
    """Return how many rows the tables have of a model that takes all ids modulo that number; None for others."""
    look_ups = prefetchable_look_ups(model)
    if isinstance(look_ups, str) or not isinstance(model, LayerGraph):
        return None
    sizes = {look_up.layer.num_rows for look_up in look_ups}
    return sizes.pop() if len(sizes) == 1 and "ids" not in fields_beside(model, look_ups) else None
