"""The model of a run, from its run file."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from dovetail.data.batch import FIELDS
from dovetail.data.schema import Schema
from dovetail.models.embedding import rows_elsewhere
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.load import as_graph, load_model
from dovetail.runtime.model.items import items_for
from dovetail.spec.run import Run


def build_graph(run: Run, schema: Schema, own: nn.Module | None = None) -> LayerGraph:
    """Return the run's model, its tables without memory; `own` is a module that the user made."""
    if own is not None:
        graph = as_graph(own, loss=run.model.loss)
    else:
        with rows_elsewhere():
            options = {"schema": schema, **items_for(run), **run.model.options}
            graph = load_model(run.model.name, seed=run.training.seed, loss=run.model.loss, **options)
    check_reads(graph.reads_of(0, len(graph) - 1), schema)
    return graph


def check_reads(reads: Iterable[str], schema: Schema) -> None:
    """Refuse a model that reads what the data do not have."""
    known = [*FIELDS, *(field.name for field in schema.fields)]
    for name in reads:
        if name not in known:
            raise ModelError(
                f"the model reads `{name}`, which no batch of these data has",
                hint=f"name arguments of forward after fields of a batch: {', '.join(known)}",
            )
