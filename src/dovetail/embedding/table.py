"""One class users see: an embedding table for any int64 keys whose hot rows sit in RAM and cold rows on disk."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding import batch_kernels as kernels
from dovetail.embedding.arrays import as_bags, as_gradients, as_keys, check_bags, in_bag_order
from dovetail.embedding.background import Background
from dovetail.embedding.checkpoint import Checkpoint, Kind, Settings
from dovetail.embedding.disk_tier import MOST_AT_ONCE
from dovetail.embedding.errors import TableError
from dovetail.embedding.hashing import shard_of
from dovetail.embedding.key_log import KeyLog
from dovetail.embedding.loading import fill, find_chains
from dovetail.embedding.record import Precision
from dovetail.embedding.row_optimizer import Adagrad, RowOptimizer, described, make_row_optimizer
from dovetail.embedding.saving import Saver
from dovetail.embedding.stats import TableStats
from dovetail.embedding.store import Held, Store

Mode = Literal["sum", "mean"]


class Table:
    """Rows of `width` values and their optimizer state, made on first use, for any int64 keys.

    The rows in RAM (at most `host_rows`, where given) and the index of all rows stay within `host_bytes`; the others
    lie in `folder`. Where a row lies never shows in its bits (but for `cold_precision` below float32). Any thread may
    call any method.
    """

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
    ) -> None:
        """Make an empty table; first values are uniform within `scale`, by default 1 / (3 sqrt(width))."""
        if width < 1 or not 0 <= shard < num_shards or (host_rows is not None and host_rows < 1):
            raise TableError(
                f"a table has width {width}, host_rows {host_rows}, shard {shard} of {num_shards}",
                hint="the width and host_rows are at least 1, and shards count from 0",
            )
        self.width = width
        self.optimizer: RowOptimizer = Adagrad() if optimizer is None else optimizer
        self.seed, self.shard, self.num_shards = seed, shard, num_shards
        self.scale = 1 / 3 / width**0.5 if scale is None else scale
        self._log = KeyLog(Path(key_log)) if key_log is not None else None
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
            key_log=self._log,
        )
        self._settings = self.optimizer.settings()
        self._rate = self._settings[0]
        self._sums = np.empty((0, width), dtype=np.float32)
        self._lock = threading.RLock()
        self._background = Background(self._store, self._lock)
        self._saver = Saver(self._store, self._lock)
        self._ageing_lookups = ageing_lookups
        self._counted = 0
        self._step_looked_up = -1
        self._num_looked_up = 0
        self._num_expired = 0

    # -- look-ups --------------------------------------------------------------------------------------------------

    def lookup(self, keys: ArrayLike, *, insert: bool = True) -> NDArray[np.float32]:
        """Return the values of each key: float32 [len(keys), width].

        A key without a row gets one, or, where `insert` is off, shows its first values and gets none.
        """
        keys = self._own(as_keys(keys))
        out = np.empty((len(keys), self.width), dtype=np.float32)
        self._background.caller_came()
        with self._lock:
            self._store.must_be_open()
            self._lookup_into(keys, out, insert=insert)
            self._after_lookup()
        return out

    def lookup_pooled(
        self, keys: ArrayLike, offsets: ArrayLike, *, mode: Mode = "sum", insert: bool = True
    ) -> NDArray[np.float32]:
        """Return one vector a bag, the sum or mean of its keys' values; bag b is keys[offsets[b]:offsets[b + 1]]."""
        keys = self._own(as_keys(keys))
        begins, ends = as_bags(offsets, len(keys), mode)
        return self.lookup_bags(keys, begins, ends, mode=mode, insert=insert)

    def lookup_bags(
        self,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        *,
        mode: Mode = "sum",
        insert: bool = True,
    ) -> NDArray[np.float32]:
        """Return one vector a bag, where bag b is keys[begins[b]:ends[b]]."""
        keys = self._own(as_keys(keys))
        check_bags(begins, ends, len(keys))
        out = np.empty((len(begins), self.width), dtype=np.float32)
        self._background.caller_came()
        with self._lock:
            self._store.must_be_open()
            held = self._store.hold(keys, insert=insert)
            if held is not None and (insert or not len(keys) or held.slots.min() >= 0):
                self._count(held)
                kernels.pool(self._store.host.rows, held.slots, begins, ends, mode == "mean", out)
            else:
                values = np.empty((len(keys), self.width), dtype=np.float32)
                self._lookup_into(keys, values, insert=insert)
                places = np.arange(len(keys), dtype=np.int32)
                kernels.pool(values, places, begins, ends, mode == "mean", out)
            self._after_lookup()
        return out

    def _lookup_into(self, keys: NDArray[np.int64], out: NDArray[np.float32], *, insert: bool) -> None:
        """Write the values of keys; where they do not fit at once, each distinct key in turn."""
        held = self._store.hold(keys, insert=insert)
        if held is not None:
            self._count(held)
            kernels.gather(self._store.host.rows, held.slots, out)
            if not insert and (absent := held.slots < 0).any():
                out[absent] = self._store.first_rows(keys[absent])
            return
        unique, inverse = np.unique(keys, return_inverse=True)
        values = np.empty((len(unique), self.width), dtype=np.float32)
        middle = len(unique) // 2
        for part in (slice(0, middle), slice(middle, None)):
            self._lookup_into(unique[part], values[part], insert=insert)
        out[:] = values[inverse]

    def _count(self, held: Held) -> None:
        """Count one access for every row looked up."""
        kernels.count_rows(self._store.host.lines, held.unique, self._store.step)
        self._counted += len(held.unique)
        self._num_looked_up += len(held.unique)

    def _after_lookup(self) -> None:
        """Go on to the next batch: age the counts where it is time, and make room where no update will."""
        store = self._store
        store.batch += 1
        period = self._ageing_lookups or 64 * store.host.capacity
        if self._counted >= period:
            kernels.age(store.index.places, store.index.counts, store.host.lines, store.host.top)
            self._counted -= period
        if store.step == self._step_looked_up:
            self._background.caller_leaves()
        self._step_looked_up = store.step

    # -- updates ---------------------------------------------------------------------------------------------------

    def update(self, keys: ArrayLike, gradients: ArrayLike) -> None:
        """Step the rows of `keys` by their gradients, float32 [len(keys), width]; those of equal keys are summed."""
        keys = self._own(as_keys(keys))
        gradients = as_gradients(gradients, len(keys), self.width)
        places = np.arange(len(keys) + 1, dtype=np.int64)
        with self._lock:
            self._store.must_be_open()
            self._update(keys, places[:-1], places[1:], gradients, mean=False)

    def update_pooled(self, keys: ArrayLike, offsets: ArrayLike, gradients: ArrayLike, *, mode: Mode = "sum") -> None:
        """Step the rows of bags by the gradients of their pooled vectors, float32 [bags, width]."""
        keys = self._own(as_keys(keys))
        begins, ends = as_bags(offsets, len(keys), mode)
        self.update_bags(keys, begins, ends, as_gradients(gradients, len(begins), self.width), mode=mode)

    def update_bags(
        self,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        gradients: NDArray[np.float32],
        *,
        mode: Mode = "sum",
    ) -> None:
        """Step the rows of bags, where bag b is keys[begins[b]:ends[b]]; every key lies in one bag."""
        keys = self._own(as_keys(keys))
        check_bags(begins, ends, len(keys))
        keys, begins, ends = in_bag_order(keys, begins, ends)
        gradients = as_gradients(gradients, len(begins), self.width)
        with self._lock:
            self._store.must_be_open()
            self._update(keys, begins, ends, gradients, mean=mode == "mean")

    def _update(
        self,
        keys: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        gradients: NDArray[np.float32],
        *,
        mean: bool,
    ) -> None:
        """Step the rows of bags, one after the other, that hold all keys."""
        held = self._store.hold(keys, insert=True)
        if held is not None:
            sums = self._sums_for(len(held.unique))
            kernels.sum_gradients(held.codes, begins, ends, gradients, mean, sums)
            self._apply(held.unique, sums)
        else:
            distinct, inverse = np.unique(keys, return_inverse=True)
            sums = np.full((len(distinct), self.width), -0.0, dtype=np.float32)
            kernels.add_at(sums, inverse, begins, ends, gradients, mean)
            self._apply_in_turn(distinct, sums)
        self._store.step += 1
        self._background.caller_leaves()

    def set_rate_factor(self, factor: float) -> None:
        """Have the following updates use `factor` times the optimizer's learning rate, as a schedule asks."""
        with self._lock:
            self._settings[0] = self._rate * np.float32(factor)

    def _sums_for(self, num_rows: int) -> NDArray[np.float32]:
        """Return room for the sums of a batch, the same memory each time."""
        if len(self._sums) < num_rows:
            self._sums = np.empty((num_rows, self.width), dtype=np.float32)
        return self._sums[:num_rows]

    def _apply_in_turn(self, keys: NDArray[np.int64], sums: NDArray[np.float32]) -> None:
        """Step distinct rows, in parts where they do not fit at once."""
        held = self._store.hold(keys, insert=True)
        if held is not None:
            self._apply(held.slots, sums)
            return
        middle = len(keys) // 2
        self._apply_in_turn(keys[:middle], sums[:middle])
        self._apply_in_turn(keys[middle:], sums[middle:])

    def _apply(self, slots: NDArray[np.int32], sums: NDArray[np.float32]) -> None:
        """Step distinct rows in the host tier; what a checkpoint under way still needs is kept first."""
        host = self._store.host
        self._saver.keep_at(slots)
        type(self.optimizer).kernel(host.rows, slots, sums, self.width, self._settings)
        self._store.change(slots)

    # -- look-ahead ------------------------------------------------------------------------------------------------

    def prefetch(self, keys: ArrayLike, *, ahead: int = 1) -> Future[int]:
        """Bring rows up in the background and keep them for the next `ahead` look-ups; the result counts the fetches.

        Keys without a row are left alone; where rows do not fit, the rest stays below.
        """
        keys = self._own(as_keys(keys))
        return self._background.prefetch(keys, ahead)

    def prepare(self, upcoming: Sequence[ArrayLike]) -> Future[int]:
        """Get ready for the look-ups after the next one, in the background; the result counts the fetches.

        Rows of `upcoming` that are in RAM are kept for as long as they are needed and there is room; those of the
        first are fetched.
        """
        return self._background.prepare([self._own(as_keys(keys)) for keys in upcoming])

    # -- the life of a row -----------------------------------------------------------------------------------------

    def expire(self, *, max_age_steps: int | None = None, min_count: int | None = None) -> NDArray[np.int64]:
        """Delete rows not looked up in the last `max_age_steps` updates, or with an aged count below `min_count`.

        Returns their keys; the next checkpoint has a tombstone for each.
        """
        with self._lock:
            self._store.must_be_open()
            step = self._store.step
            before = -1 if max_age_steps is None else step - max_age_steps
            expired = self._store.find_expired(before, -1 if min_count is None else min_count)
            for start in range(0, len(expired), MOST_AT_ONCE):
                part = expired[start : start + MOST_AT_ONCE]
                self._saver.bury(part)
                self._store.remove(part)
            self._num_expired += len(expired)
            if self._log is not None:
                self._log.add(step, "expired", expired)
        return expired

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, kind: Kind = "full") -> Checkpoint:
        """Write a checkpoint into the folder `path`; once this returns it is whole and on disk."""
        return self.save_beside(path, kind=kind).result()

    def save_beside(self, path: str | Path, *, kind: Kind = "full") -> Future[Checkpoint]:
        """Write the rows as they are now in the background, while training goes on.

        A `delta` holds the rows changed, and tombstones for those expired, since the last checkpoint of this table.
        """
        with self._lock:
            self._store.must_be_open()
            settings = Settings(
                width=self.width,
                optimizer=described(self.optimizer),
                seed=self.seed,
                scale=self.scale,
                shard=self.shard,
                num_shards=self.num_shards,
                step=self._store.step,
            )
            return self._saver.begin(Path(path), kind, settings)

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        host_bytes: int = 1 << 30,
        host_rows: int | None = None,
        folder: str | Path | None = None,
        shard: int = 0,
        num_shards: int = 1,
        cold_precision: Precision = "float32",
        ageing_lookups: int | None = None,
        key_log: str | Path | None = None,
        segment_bytes: int | None = None,
    ) -> Table:
        """Return a table with the rows of the newest checkpoint in `path`, or in several: one of each old shard.

        Budgets and shards may differ from those of the table that was saved: only keys of `shard` are taken.
        """
        settings, chains = find_chains(path)
        optimizer = dict(settings.optimizer)
        table = cls(
            width=settings.width,
            optimizer=make_row_optimizer(optimizer.pop("name"), **optimizer),
            seed=settings.seed,
            scale=settings.scale,
            host_bytes=host_bytes,
            host_rows=host_rows,
            folder=folder,
            cold_precision=cold_precision,
            shard=shard,
            num_shards=num_shards,
            ageing_lookups=ageing_lookups,
            key_log=key_log,
            segment_bytes=segment_bytes,
        )
        try:
            for chain in chains:
                fill(table._store, chain, shard=shard, num_shards=num_shards)
        except BaseException:
            table.close()
            raise
        return table

    # -- the rest --------------------------------------------------------------------------------------------------

    def rows(self, keys: ArrayLike) -> NDArray[np.float32]:
        """Return whole rows, values then optimizer state, moving and counting nothing; zeros where there is no row."""
        with self._lock:
            self._store.must_be_open()
            return self._store.peek(as_keys(keys))

    def keys(self) -> NDArray[np.int64]:
        """Return every key that has a row, in no order."""
        with self._lock:
            self._store.must_be_open()
            return self._store.keys()

    def counts(self, keys: ArrayLike) -> NDArray[np.int32]:
        """Return the aged access count of each key's row."""
        with self._lock:
            self._store.must_be_open()
            return self._store.known(as_keys(keys)).counts

    def stats(self) -> TableStats:
        """Return what the table holds and has done."""
        with self._lock:
            store = self._store
            return TableStats(
                num_rows=store.index.num_rows,
                host_rows=store.host.num_rows,
                disk_rows=store.index.num_rows - store.host.num_rows,
                memory_bytes=store.memory_bytes,
                budget_bytes=store.host_bytes,
                index_bytes=store.index.used_bytes,
                host_row_bytes=store.host.used_bytes,
                disk_bytes=store.disk.used_bytes if store.disk else 0,
                num_looked_up=self._num_looked_up,
                num_fetched=store.num_fetched,
                num_evicted=store.num_evicted,
                num_written=store.num_written,
                num_expired=self._num_expired,
            )

    @property
    def step(self) -> int:
        """Return how many updates there were."""
        return self._store.step

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._store.index.num_rows

    def close(self) -> None:
        """Wait for background work, and give back memory and files; checkpoints stay."""
        with self._lock:
            if self._store.closed:
                return
            self._store.closed = True
        self._background.close()
        with self._lock:
            self._store.close()
            if self._log is not None:
                self._log.close()

    def __enter__(self) -> Table:
        """Return the table itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the table."""
        self.close()

    def _own(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Refuse keys of other shards."""
        if self.num_shards > 1 and len(keys):
            foreign = shard_of(keys, self.num_shards) != self.shard
            if foreign.any():
                raise TableError(
                    f"key {keys[foreign][0]} does not belong to shard {self.shard} of {self.num_shards}",
                    hint="route keys by dovetail.embedding.shard_of(keys, num_shards)",
                )
        return keys
