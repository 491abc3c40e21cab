"""The items that a matching model ranks: from the run's data, as a run file cannot hold them."""

from __future__ import annotations

import inspect
from typing import Any

from dovetail.data.items import items_of
from dovetail.data.load import DATA, load_data
from dovetail.models.load import MODELS
from dovetail.spec.run import Run

LOOKED_AT = 10_000
"""Samples whose items make up the pool where the data do not list them."""


def items_for(run: Run) -> dict[str, Any]:
    """Return the option `items` for a model by name that needs it, from data by name; else nothing."""
    name, data = run.model.name, run.data
    needed = inspect.signature(MODELS[name].build).parameters if name in MODELS else {}
    if "items" not in needed or not (data.name in DATA or ":" in data.name):
        return {}
    source = load_data(data.name, **data.options)
    listed = getattr(source, "items", None)
    if callable(listed):
        return {"items": listed()}
    first_slot = run.model.options.get("num_user_slots", needed["num_user_slots"].default)
    return {"items": items_of(source.read(0, LOOKED_AT), first_slot=first_slot)}
