"""Training data: made, read from files, or a user's own; in batches, in an order anyone can work out.

Every name is imported when it is first asked for: who only needs the order loads neither torch nor compilers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.data.adopt import as_source
    from dovetail.data.batch import FIELDS, Batch, concatenate
    from dovetail.data.cache import DecodedCache
    from dovetail.data.clicks import Clicks, Matches
    from dovetail.data.errors import BadRow, BadRows, BadRowsError, DataError
    from dovetail.data.items import ItemPool, items_of
    from dovetail.data.load import load_data
    from dovetail.data.loader import Loader
    from dovetail.data.order import Order
    from dovetail.data.schema import CRITEO_SCHEMA, Field, Schema, Slot
    from dovetail.data.source import Source
    from dovetail.data.transforms import hashed

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
    "Field",
    "ItemPool",
    "Loader",
    "Matches",
    "Order",
    "Schema",
    "Slot",
    "Source",
    "as_source",
    "concatenate",
    "hashed",
    "items_of",
    "load_data",
]

__getattr__, __dir__ = on_demand(__name__)
