"""Embedding tables for any int64 keys, larger than memory.

The layer, and torch with it, is imported when it is asked for: servers do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.embedding.checkpoints.format import Checkpoint
from dovetail.embedding.errors import DamagedFileError, StorageError, TableError
from dovetail.embedding.hashing import first_values, shard_of
from dovetail.embedding.lookahead import look_ahead
from dovetail.embedding.row_optimizer import (
    FTRL,
    ROW_OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamPerRow,
    RowOptimizer,
    RowWiseAdagrad,
    make_row_optimizer,
)
from dovetail.embedding.store import TableStats, Whereabouts
from dovetail.embedding.table import Table
from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.embedding.module import TableEmbedding
    from dovetail.embedding.tiers.device.captured_step import FusedStep

__all__ = [
    "FTRL",
    "ROW_OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamPerRow",
    "Checkpoint",
    "DamagedFileError",
    "FusedStep",
    "RowOptimizer",
    "RowWiseAdagrad",
    "StorageError",
    "Table",
    "TableEmbedding",
    "TableError",
    "TableStats",
    "Whereabouts",
    "first_values",
    "look_ahead",
    "make_row_optimizer",
    "shard_of",
]

__getattr__, __dir__ = on_demand(__name__)
