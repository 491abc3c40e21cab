"""Models as graphs of named layers, how they are trained, and how good they are.

Every name is imported when it is first asked for: who only needs a schedule does without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.models.block import Block
    from dovetail.models.draws import SampleDropout
    from dovetail.models.embedding import SlotEmbedding
    from dovetail.models.errors import ModelError
    from dovetail.models.layer_graph import LayerGraph
    from dovetail.models.load import MODELS, as_graph, as_whole, initialise, load_model, load_whole
    from dovetail.models.losses import LOSSES, loss_block, make_loss
    from dovetail.models.metrics import Auc, LogLoss, Metric, RecallAt, make_metric
    from dovetail.models.recipe import Recipe
    from dovetail.models.schedules import Schedule, make_schedule
    from dovetail.models.step import ModelOptimizer, evaluate, make_optimizer, train_step
    from dovetail.models.whole import WholeModel

__all__ = [
    "LOSSES",
    "MODELS",
    "Auc",
    "Block",
    "LayerGraph",
    "LogLoss",
    "Metric",
    "ModelError",
    "ModelOptimizer",
    "RecallAt",
    "Recipe",
    "SampleDropout",
    "Schedule",
    "SlotEmbedding",
    "WholeModel",
    "as_graph",
    "as_whole",
    "evaluate",
    "initialise",
    "load_model",
    "load_whole",
    "loss_block",
    "make_loss",
    "make_metric",
    "make_optimizer",
    "make_schedule",
    "train_step",
]

__getattr__, __dir__ = on_demand(__name__)
