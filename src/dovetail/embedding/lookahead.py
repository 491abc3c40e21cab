"""Looking ahead: while one batch is trained on, the rows of the next ones are fetched and kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from numpy.typing import ArrayLike

from dovetail.embedding.errors import TableError
from dovetail.embedding.table import Table

Batch = TypeVar("Batch")


def look_ahead(
    batches: Iterable[Batch], table: Table, *, keys: Callable[[Batch], ArrayLike], depth: int = 2
) -> Iterator[Batch]:
    """Yield the batches in their order, having the rows of up to `depth` later ones fetched in the background.

    Meant for one look-up a batch: a row fetched for a batch is kept for as many look-ups as there are until then.
    """
    if depth < 1:
        raise TableError(f"look-ahead has depth {depth}", hint="give 1 or more batches")
    waiting: deque[Batch] = deque()
    for batch in batches:
        waiting.append(batch)
        table.prefetch(keys(batch), ahead=len(waiting))
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting
