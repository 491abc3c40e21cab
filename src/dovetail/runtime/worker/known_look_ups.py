"""Models whose look-ups are all decided by the batch alone: what they will look up is known before they run."""

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

IDS = ("ids", "offsets")
"""What a layer reads whose look-ups are known."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownLookUp:
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


def known_look_ups(model: Model) -> Sequence[KnownLookUp] | str:
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
        found.append(KnownLookUp(tables[id(layer)], layer))
    return found


def fields_beside(model: Model) -> tuple[str, ...]:
    """Return what the layers read of a batch that do not look rows up."""
    if not isinstance(model, LayerGraph):
        return ()
    tables = {id(layer) for each in sparse_modules(model) for layer in each.layers}
    read = [name for block in model.blocks if id(block.module) not in tables for name in block.reads]
    return tuple(dict.fromkeys(read))
