"""Looking ahead: while one batch is trained on, the rows of the next are fetched, and rows needed soon are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding.arrays import as_keys
from dovetail.embedding.errors import TableError
from dovetail.embedding.table import Table

if TYPE_CHECKING:
    from dovetail.embedding.tiers.device.table import DeviceTable

Batch = TypeVar("Batch")


def look_ahead(
    batches: Iterable[Batch], table: Table, *, keys: Callable[[Batch], ArrayLike], depth: int = 8
) -> Iterator[Batch]:
    """Yield the batches in their order, telling the table in the background what the next `depth` ones need.

    Meant for one look-up a batch. The rows of the next batch are fetched while the present one is trained on; rows in
    RAM that any of the `depth` next ones needs are kept as long as there is room. Where the table has rows on a device,
    those of all `depth` next batches are brought there; `keys` are then as they will be looked up.
    """
    if depth < 1:
        raise TableError(f"look-ahead has depth {depth}", hint="give 1 or more batches")
    if table.on_device is not None:
        yield from _announced(batches, table.on_device, keys, depth)
        return
    waiting: deque[tuple[Batch, NDArray[np.int64]]] = deque()
    for batch in batches:
        waiting.append((batch, np.unique(as_keys(keys(batch)))))
        if len(waiting) > depth:
            yield _next(waiting, table)
    while waiting:
        yield _next(waiting, table)


def _announced(
    batches: Iterable[Batch], rows: DeviceTable, keys: Callable[[Batch], ArrayLike], depth: int
) -> Iterator[Batch]:
    """Yield the batches, each announced `depth` batches before; what is announced and not looked up is forgotten."""
    waiting: deque[Batch] = deque()
    for batch in batches:
        rows.announce(keys(batch))
        waiting.append(batch)
        if len(waiting) > depth:
            yield waiting.popleft()
            _skip_to(rows, len(waiting))
    while waiting:
        yield waiting.popleft()
        _skip_to(rows, len(waiting))


def _skip_to(rows: DeviceTable, num_waiting: int) -> None:
    while rows.num_ahead > num_waiting:
        rows.skip()


def _next(waiting: deque[tuple[Batch, NDArray[np.int64]]], table: Table) -> Batch:
    """Return the first batch, having the table get ready for the others."""
    batch, _ = waiting.popleft()
    if waiting:
        table.prepare([upcoming for _, upcoming in waiting])
    return batch
