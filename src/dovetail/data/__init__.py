"""Training data: made, read from files, or a user's own; in batches, in an order anyone can work out."""

from dovetail.data.bad_rows import BadRow, BadRows
from dovetail.data.batch import FIELDS, Batch, concatenate
from dovetail.data.cache import DecodedCache
from dovetail.data.clicks import Clicks, ItemPool, Matches
from dovetail.data.errors import BadRowsError, DataError
from dovetail.data.leases import Lease, LeaseBook
from dovetail.data.load import load_data
from dovetail.data.loader import Loader
from dovetail.data.order import Order
from dovetail.data.schema import Schema, Slot
from dovetail.data.source import Source

__all__ = [
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
    "load_data",
]
