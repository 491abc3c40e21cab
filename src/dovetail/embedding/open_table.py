"""A table's budgets, tiers and threads: made, counted and closed; what is done with rows is in `table`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding.arrays import as_keys, own_keys
from dovetail.embedding.background import Background
from dovetail.embedding.errors import TableError
from dovetail.embedding.key_log import KeyLog
from dovetail.embedding.lookup import Lookup
from dovetail.embedding.record import Precision
from dovetail.embedding.row_optimizer import Adagrad, RowOptimizer
from dovetail.embedding.saving import Saver
from dovetail.embedding.stats import TableStats
from dovetail.embedding.store import Store
from dovetail.embedding.update import Update

if TYPE_CHECKING:
    from dovetail.embedding.device.on_device import OnDevice


class OpenTable:
    """What a table has while it is open."""

    def __init__(
        self,
        *,
        width: int,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        scale: float | None = None,
        host_bytes: int = 1 << 30,
        host_rows: int | None = None,
        folder: str | Path | None = None,
        cold_precision: Precision = "float32",
        shard: int = 0,
        num_shards: int = 1,
        ageing_lookups: int | None = None,
        key_log: str | Path | None = None,
        segment_bytes: int | None = None,
        device: str = "cuda",
        device_bytes: int | None = None,
        device_rows: int | None = None,
        expected_rows: int | None = None,
        threads: int = 1,
    ) -> None:
        """Make an empty table; first values are uniform within `scale`, by default 1 / (3 sqrt(width)).

        With `device_bytes`, rows lie in the memory of `device` too, for those who train through `on_device`. An index
        for `expected_rows` need not grow, and nobody waits for it to. `threads` share batches of distinct keys.
        """
        if width < 1 or not 0 <= shard < num_shards or (host_rows is not None and host_rows < 1) or threads < 1:
            raise TableError(
                f"a table has width {width}, host_rows {host_rows}, threads {threads}, shard {shard} of {num_shards}",
                hint="the width, host_rows and threads are at least 1, and shards count from 0",
            )
        self.width = width
        self.optimizer: RowOptimizer = Adagrad() if optimizer is None else optimizer
        self.seed, self.shard, self.num_shards = seed, shard, num_shards
        self.scale = 1 / 3 / width**0.5 if scale is None else scale
        self._store = Store(
            width=width,
            optimizer=self.optimizer,
            seed=seed,
            scale=self.scale,
            host_bytes=host_bytes,
            host_rows=host_rows,
            folder=Path(folder) if folder is not None else None,
            cold_precision=cold_precision,
            segment_bytes=segment_bytes,
            key_log=KeyLog(Path(key_log)) if key_log is not None else None,
            expected_rows=expected_rows,
            threads=threads,
        )
        self._lock = threading.RLock()
        self._background = Background(self._store, self._lock)
        self._saver = Saver(self._store, self._lock)
        self._lookup = Lookup(self._store, ageing_lookups)
        self._update = Update(self._store, self._saver, self.optimizer)
        self._num_expired = 0
        self.on_device: OnDevice | None = None
        """Rows on a device, for those who train there; None where the table has none."""
        if device_bytes is not None:
            from dovetail.embedding.device.on_device import OnDevice  # noqa: PLC0415 - torch, which servers do without

            self.on_device = OnDevice(
                *(self._store, self._saver, self._lookup, self.optimizer, self._lock),
                device=device,
                device_bytes=device_bytes,
                device_rows=device_rows,
                shard=shard,
                num_shards=num_shards,
            )

    def stats(self) -> TableStats:
        """Return what the table holds and has done."""
        with self._lock:
            return self._store.stats(num_looked_up=self._lookup.num_rows, num_expired=self._num_expired)

    @property
    def step(self) -> int:
        """Return how many updates there were."""
        return self._store.clock.step

    def __len__(self) -> int:
        if self.on_device is None or self._store.closed:
            return self._store.num_rows
        with self._open():
            return self._store.num_rows

    def close(self) -> None:
        """Wait for background work, and give back memory and files; checkpoints stay."""
        with self._lock:
            if self._store.closed:
                return
            self._store.closed = True
        self._background.close()
        if self.on_device is not None:
            self.on_device.close()
        with self._lock:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Have the table to oneself; one that is closed is refused."""
        with self._still(), self._lock:
            self._store.must_be_open()
            yield

    def _still(self) -> contextlib.AbstractContextManager[None]:
        """Have no rows on their way to a device or from it."""
        return contextlib.nullcontext() if self.on_device is None else self.on_device.paused()

    def _own(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Return keys as a vector; those of other shards are refused."""
        return own_keys(as_keys(keys), self.shard, self.num_shards)
