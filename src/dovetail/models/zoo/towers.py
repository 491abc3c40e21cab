"""Runs of fully connected layers, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dovetail.models.block import Block
from dovetail.models.draws import SampleDropout


class Join(nn.Module):
    """Puts tensors side by side along their last dimension."""

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the parts joined."""
        return torch.cat(parts, dim=-1)


def fc_tower(
    widths: Sequence[int],
    *,
    prefix: str = "",
    after: tuple[str, ...] | None = None,
    last_relu: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
    first_number: int = 1,
) -> list[Block]:
    """Return `fc1`, `relu1`, `fc2`, ... from widths[0] inputs to widths[-1] outputs, each name with `prefix`.

    Every activation but a left-out last one is followed by dropout where that is above zero.
    """
    blocks: list[Block] = []
    for step, (inputs, outputs) in enumerate(pairwise(widths)):
        number = step + first_number
        fc = nn.Linear(inputs, outputs)
        blocks.append(Block(name=f"{prefix}fc{number}", kind="fc", module=fc, after=after if step == 0 else None))
        if step == len(widths) - 2 and not last_relu:
            break
        blocks.append(Block(name=f"{prefix}relu{number}", kind="activation", module=nn.ReLU()))
        if dropout > 0:
            name = f"{prefix}dropout{number}"
            module = SampleDropout(dropout, seed=seed, name=name)
            blocks.append(Block(name=name, kind="other", module=module, reads=("sample_ids",)))
    return blocks
