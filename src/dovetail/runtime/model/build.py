"""The model of a run, from its run file."""

from __future__ import annotations

from torch import nn

from dovetail.data.schema import Schema
from dovetail.models.embedding import rows_elsewhere
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.load import as_whole, load_whole
from dovetail.models.whole import WholeModel
from dovetail.runtime.model.items import items_for
from dovetail.spec.run import Run

Model = LayerGraph | WholeModel


def build_model(run: Run, schema: Schema, own: nn.Module | None = None) -> Model:
    """Return the run's model, its tables without memory; `own` is a module that the user made, which is not copied."""
    if own is not None:
        return as_whole(own, loss=run.model.loss)
    with rows_elsewhere():
        options = {"schema": schema, **items_for(run), **run.model.options}
        return load_whole(run.model.name, seed=run.training.seed, loss=run.model.loss, **options)
