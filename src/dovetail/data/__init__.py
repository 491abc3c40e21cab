"""Training data: made, read from files, or a user's own; in batches, in an order anyone can work out.

What compiles kernels or reads files is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dovetail.data.bad_rows import BadRow, BadRows
from dovetail.data.batch import FIELDS, Batch, concatenate
from dovetail.data.cache import DecodedCache
from dovetail.data.errors import BadRowsError, DataError
from dovetail.data.items import ItemPool, items_of
from dovetail.data.leases import Lease, LeaseBook
from dovetail.data.loader import Loader
from dovetail.data.order import Order
from dovetail.data.schema import CRITEO_SCHEMA, Schema, Slot
from dovetail.data.source import Source

if TYPE_CHECKING:
    from dovetail.data.clicks import Clicks, Matches
    from dovetail.data.load import load_data

__all__ = [
    "CRITEO_SCHEMA",
    "FIELDS",
    "BadRow",
    "BadRows",
    "BadRowsError",
    "Batch",
    "Clicks",
    "DataError",
    "DecodedCache",
    "ItemPool",
    "Lease",
    "LeaseBook",
    "Loader",
    "Matches",
    "Order",
    "Schema",
    "Slot",
    "Source",
    "concatenate",
    "items_of",
    "load_data",
]

_ON_DEMAND = {"Clicks": "dovetail.data.clicks", "Matches": "dovetail.data.clicks", "load_data": "dovetail.data.load"}


def __getattr__(name: str) -> Any:
    """Import a name of this package that is not there yet."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module `dovetail.data` has no attribute `{name}`")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)
