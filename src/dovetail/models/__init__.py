"""Models as chains of named layers, how they are trained, and how good they are.

Every name is imported when it is first asked for: who only needs a schedule does without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.models.block import Block
    from dovetail.models.chain import Chain
    from dovetail.models.dropout import SampleDropout
    from dovetail.models.embedding import SlotEmbedding
    from dovetail.models.errors import ModelError
    from dovetail.models.initial_values import initialise
    from dovetail.models.load import MODELS, as_chain, load_model
    from dovetail.models.losses import LOSSES, loss_block
    from dovetail.models.metrics import Auc, LogLoss, Metric, RecallAt, make_metric
    from dovetail.models.optimizers import ModelOptimizer, make_optimizer
    from dovetail.models.recipe import Recipe
    from dovetail.models.schedules import Schedule, make_schedule
    from dovetail.models.step import evaluate, train_step

__all__ = [
    "LOSSES",
    "MODELS",
    "Auc",
    "Block",
    "Chain",
    "LogLoss",
    "Metric",
    "ModelError",
    "ModelOptimizer",
    "RecallAt",
    "Recipe",
    "SampleDropout",
    "Schedule",
    "SlotEmbedding",
    "as_chain",
    "evaluate",
    "initialise",
    "load_model",
    "loss_block",
    "make_metric",
    "make_optimizer",
    "make_schedule",
    "train_step",
]

_HOME = {
    "block": ("Block",),
    "chain": ("Chain",),
    "dropout": ("SampleDropout",),
    "embedding": ("SlotEmbedding",),
    "errors": ("ModelError",),
    "initial_values": ("initialise",),
    "load": ("MODELS", "as_chain", "load_model"),
    "losses": ("LOSSES", "loss_block"),
    "metrics": ("Auc", "LogLoss", "Metric", "RecallAt", "make_metric"),
    "optimizers": ("ModelOptimizer", "make_optimizer"),
    "recipe": ("Recipe",),
    "schedules": ("Schedule", "make_schedule"),
    "step": ("evaluate", "train_step"),
}
_MODULE_OF = {name: f"dovetail.models.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name of this package that is not there yet."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module `dovetail.models` has no attribute `{name}`")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
