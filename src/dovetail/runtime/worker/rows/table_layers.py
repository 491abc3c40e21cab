"""Layers of PyTorch's that look up rows which lie on servers: what each does with ids, as PyTorch does it."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType

import torch
from torch import Tensor, nn

from dovetail.models.embedding import RowSource, SlotEmbedding
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.model.parameters import TableLayer


def serve(module: TableLayer, source: RowSource) -> None:
    """Have a layer take its rows from servers, and let go of its own weight."""
    if isinstance(module, SlotEmbedding):
        module.row_source = source
    elif isinstance(module, nn.EmbeddingBag):
        module.forward = MethodType(_bag_forward(source), module)  # type: ignore[method-assign]
    else:
        module.forward = MethodType(_embedding_forward(source), module)  # type: ignore[method-assign]
    module.weight = nn.Parameter(module.weight.detach().to("meta"), requires_grad=False)


def without_padding(ids: Tensor, padding: int | None) -> Tensor:
    """Return the ids, flat, whose rows are looked up: not that of the padding, which is zeros for ever."""
    flat = ids.reshape(-1)
    return flat if padding is None else flat[flat != padding]


def _embedding_forward(source: RowSource) -> Callable[..., Tensor]:
    def forward(module: nn.Embedding, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name for the ids
        rows = source.rows if module.padding_idx is None else _padded(source, module.padding_idx)
        return rows(input).to(module.weight.dtype)

    return forward


def _padded(source: RowSource, padding: int) -> Callable[[Tensor], Tensor]:
    """Return a look-up that has zeros for the padding, and no gradients."""

    def rows(ids: Tensor) -> Tensor:
        flat = ids.reshape(-1)
        found = source.rows(without_padding(ids, padding))
        places = (flat != padding).nonzero().reshape(-1).to(found.device)
        padded = found.new_zeros(flat.numel(), found.shape[-1]).index_copy(0, places, found)
        return padded.view(*ids.shape, -1)

    return rows


def _bag_forward(source: RowSource) -> Callable[..., Tensor]:
    def forward(
        module: nn.EmbeddingBag,
        input: Tensor,  # noqa: A002 - PyTorch's name for the ids
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        ids, offsets = input.reshape(-1), _whole_offsets(module, input, offsets)
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
        if weights is not None and module.mode != "sum":
            raise TrainingError(
                f"an nn.EmbeddingBag has per_sample_weights and pools by {module.mode}",
                hint='choose mode="sum", as PyTorch asks',
            )
        if module.padding_idx is not None:
            is_used = ids != module.padding_idx
            counted = torch.cat([offsets.new_zeros(1), is_used.to(offsets).cumsum(0)])
            ids, offsets = ids[is_used], counted[offsets]
            weights = None if weights is None else weights[is_used]
        if weights is None:
            return source.look_up(ids, offsets, module.mode).to(module.weight.dtype)
        return _weighted(source.rows(ids), offsets, weights).to(module.weight.dtype)

    return forward


def _whole_offsets(module: nn.EmbeddingBag, ids: Tensor, offsets: Tensor | None) -> Tensor:
    """Return where each bag begins, and where the last one ends."""
    if ids.dim() == 2:
        return torch.arange(0, ids.numel() + 1, ids.shape[1], device=ids.device)
    if offsets is None:
        raise TrainingError(
            "an nn.EmbeddingBag gets ids in one row and no offsets", hint="pass it the batch's offsets too"
        )
    if module.include_last_offset:
        return offsets
    return torch.cat([offsets, offsets.new_tensor([ids.numel()])])


def _weighted(rows: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of each bag's rows, each times its weight."""
    lengths = offsets.diff().to(rows.device)
    bags = torch.repeat_interleave(torch.arange(len(lengths), device=rows.device), lengths)
    weighed = rows * weights.to(rows).unsqueeze(1)
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, bags, weighed)
