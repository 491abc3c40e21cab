"""Small real models and data for tests."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.data import Batch, Clicks, Matches, Source, load_data
from dovetail.models import LayerGraph, load_model

torch.set_num_threads(1)

CLICK_MODELS = ("ctr-dnn", "2emb", "dlrm")
ALL_MODELS = (*CLICK_MODELS, "matchnet", "nce")
SMALL: dict[str, dict[str, Any]] = {
    "ctr-dnn": {"hidden": (16, 16), "width": 4},
    "2emb": {"hidden": (16, 8), "width": 4, "small_hidden": 8, "small_rows": 7},
    "dlrm": {"bottom": (8,), "top": (16,), "width": 4},
    "matchnet": {"hidden": (16, 8), "width": 4, "num_user_slots": 3, "num_negatives": 5},
    "nce": {"width": 8, "num_negatives": 5},
}


def make_source(name: str) -> Source:
    """Return data that fit a model."""
    if name == "matchnet":
        return Matches(
            num_user_slots=3, user_values=2.0, num_item_slots=4, num_dense=2, num_items=40, rows_per_user_slot=20
        )
    if name == "nce":
        return load_data("clicks", truth="next-item", num_items=40, rows_per_user_slot=40)
    return Clicks(num_slots=6, num_multi_valued=2, num_dense=3, rows_per_slot=10)


def make_model(name: str, *, seed: int = 0, dropout: float = 0.0, **more: Any) -> LayerGraph:
    """Return a small model of that name."""
    source = make_source(name)
    options = SMALL[name] | more
    if name != "nce":
        options["dropout"] = dropout
    if isinstance(source, Matches) and name == "matchnet":
        options["items"] = source.items()
    return load_model(name, seed=seed, schema=source.schema, num_rows=source.schema.num_keys, **options)


def make_batch(name: str, first: int = 0, last: int = 32) -> Batch:
    """Return samples that fit a model."""
    return make_source(name).read(first, last)


def gradients(graph: LayerGraph) -> dict[str, torch.Tensor]:
    """Return the gradient of every parameter, sparse ones filled up."""
    found = {}
    for name, parameter in graph.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad.to_dense().clone()
    return found
