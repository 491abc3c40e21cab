"""The model of a run, from its run file."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn

from dovetail.data.batch import FIELDS
from dovetail.data.items import items_of
from dovetail.data.load import DATA, open_data
from dovetail.data.schema import Schema
from dovetail.models.embedding import rows_elsewhere
from dovetail.models.errors import ModelError
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.load import MODELS, as_graph, as_whole, load_model, load_whole, one_loss
from dovetail.models.whole import WholeModel
from dovetail.spec.run import Run

LOOKED_AT = 10_000
"""Samples whose items make up the pool where the data do not list them."""


def items_for(run: Run) -> dict[str, Any]:
    """Return the option `items` for a model by name that needs it, from data by name; else nothing."""
    name, data = run.model.name, run.data
    needed = inspect.signature(MODELS[name].build).parameters if name in MODELS else {}
    if "items" not in needed or not (data.name in DATA or ":" in data.name):
        return {}
    source = open_data(data.name, data.options, key_file=run.checkpoint.key_file)
    listed = getattr(source, "items", None)
    if callable(listed):
        return {"items": listed()}
    first_slot = run.model.options.get("num_user_slots", needed["num_user_slots"].default)
    return {"items": items_of(source.read(0, LOOKED_AT), first_slot=first_slot)}


Model = LayerGraph | WholeModel


def build_model(run: Run, schema: Schema, own: nn.Module | None = None) -> Model:
    """Return the run's model, its tables without memory; `own` is a module that the user made, which is not copied."""
    model: Model
    if own is not None:
        model = of_users(own, run)
    else:
        with rows_elsewhere():
            options = {"schema": schema, **items_for(run), **run.model.options}
            name, seed, loss = run.model.name, run.training.seed, run.model.loss
            model = (
                load_model(name, seed=seed, loss=one_loss(loss), **options)
                if _is_cut(run)
                else load_whole(name, seed=seed, loss=loss, **options)
            )
    further = [field.name for field in schema.fields]
    reads = model.reads_of(0, len(model) - 1) if isinstance(model, LayerGraph) else model.reads_of(further)
    check_reads(reads, schema)
    return model


def of_users(own: nn.Module, run: Run) -> Model:
    """Return a module that the user made as a run trains it: as it is, or as a graph where it is cut into stages."""
    if _is_cut(run):
        return as_graph(own, loss=one_loss(run.model.loss))
    return as_whole(own, loss=run.model.loss)


def _is_cut(run: Run) -> bool:
    return len(run.stages) > 1


def check_reads(reads: Iterable[str], schema: Schema) -> None:
    """Refuse a model that reads what the data do not have."""
    known = [*FIELDS, *(field.name for field in schema.fields)]
    for name in reads:
        if name not in known:
            where = place_of(name, schema)
            raise ModelError(
                f"the model reads `{name}`, which no batch of these data has" + (f": it is {where}" if where else ""),
                hint=as_field(name)
                if where
                else f"name arguments of forward after fields of a batch: {', '.join(known)}",
            )


def kept_defaults(model: Model, schema: Schema) -> list[str]:
    """Return a line for every argument of a user's module that keeps its default, as no field is called so."""
    if not isinstance(model, WholeModel):
        return []
    lines = []
    for name in model.not_given([field.name for field in schema.fields]):
        where = place_of(name, schema)
        why = f"`{name}` is {where}; {as_field(name)}" if where else f"no field of the data is called `{name}`"
        lines.append(f"forward's `{name}` keeps its default: {why}")
    return lines


def place_of(name: str, schema: Schema) -> str:
    """Return where in a batch a column is that is no field of its own; nothing where there is no such column."""
    if name in (slot.name for slot in schema.slots):
        return "a slot, whose ids are among `ids` and `offsets`"
    return f"a number, `dense[:, {schema.dense.index(name)}]`" if name in schema.dense else ""


def as_field(name: str) -> str:
    """Return how a column becomes a field of its own."""
    return f'make it a field of its own: fields=["{name}"], with ignore=[] to leave the other columns as they are'
