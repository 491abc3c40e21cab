"""Models in bfloat16 and float16: what they are given, and what is taken from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dovetail.models.answers import Scores, heads_of

LOW_TYPES = (torch.bfloat16, torch.float16)
NOT_INPUTS = ("labels", "weights")
"""Fields that a model in lower precision gets as they are: classes above 256 are no bfloat16."""


def suited(value: Any, module: nn.Module, name: str) -> Any:
    """Return a field of a batch as a module takes it: numbers in its type, where all it has is bfloat16 or float16."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or name in NOT_INPUTS:
        return value
    first = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
    if first not in LOW_TYPES:
        return value
    is_alike = all(each.dtype == first for each in module.parameters() if each.is_floating_point())
    return value.to(first) if is_alike else value


def in_full(scores: Scores) -> Scores:
    """Return an answer in float32 where it is less, for a loss that adds up many."""
    if isinstance(scores, Tensor):
        return scores.float() if scores.dtype in LOW_TYPES else scores
    parts = heads_of(scores)
    if not any(isinstance(part, Tensor) and part.dtype in LOW_TYPES for part in parts.values()):
        return scores
    return {name: part.float() if part.dtype in LOW_TYPES else part for name, part in parts.items()}
