"""One class users see: an embedding table for any int64 keys whose hot rows sit in RAM and cold rows on disk."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding.arrays import as_bags, as_gradients, as_keys, check_bags, in_bag_order, own_keys
from dovetail.embedding.checkpoints.format import Checkpoint, Kind, TableSettings
from dovetail.embedding.checkpoints.loading import LoadOptions, fill, find_chains, optimizer_of
from dovetail.embedding.checkpoints.saving import Saver
from dovetail.embedding.errors import TableError
from dovetail.embedding.eviction import KeyLog
from dovetail.embedding.lookup import Lookup
from dovetail.embedding.row_optimizer import Adagrad, PrivateSGD, RowOptimizer, described
from dovetail.embedding.store import TableStats, TieredStore, Whereabouts
from dovetail.embedding.tiers.disk.record import Precision
from dovetail.embedding.tiers.tier import MOST_AT_ONCE
from dovetail.embedding.update import Update
from dovetail.privacy.owed import OwedNoise

if TYPE_CHECKING:
    from dovetail.embedding.tiers.device.table import DeviceTable
    from dovetail.embedding.tiers.device.tier import DeviceTier

Mode = Literal["sum", "mean"]
SHORTEST_PAUSE_S = 0.001
"""A caller who comes back sooner would wait for a write-back; its next look-up makes room itself."""


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
        device: str = "cuda",
        device_bytes: int | None = None,
        device_rows: int | None = None,
        expected_rows: int | None = None,
        threads: int = 1,
        owed: OwedNoise | None = None,
    ) -> None:
        """Make an empty table; first values are uniform within `scale`, by default 1 / (3 sqrt(width)).

        With `device_bytes`, rows lie in the memory of `device` too, for those who train through `on_device`. An index
        for `expected_rows` need not grow, and nobody waits for it to. `threads` share batches of distinct keys. Rows
        get what noise is `owed` as they are looked up and stepped; that takes the optimizer `PrivateSGD`.
        """
        if width < 1 or not 0 <= shard < num_shards or (host_rows is not None and host_rows < 1) or threads < 1:
            raise TableError(
                f"a table has width {width}, host_rows {host_rows}, threads {threads}, shard {shard} of {num_shards}",
                hint="the width, host_rows and threads are at least 1, and shards count from 0",
            )
        if owed is not None and (not isinstance(optimizer, PrivateSGD) or device_bytes is not None):
            raise TableError(
                "rows owe noise in host memory, with the optimizer `private-sgd`, and with no other",
                hint="give the optimizer PrivateSGD, and no device_bytes",
            )
        self.width = width
        self.owed = owed
        """What rows owe that no step has touched; None: nothing."""
        self.optimizer: RowOptimizer = Adagrad() if optimizer is None else optimizer
        self.seed, self.shard, self.num_shards = seed, shard, num_shards
        self.scale = 1 / 3 / width**0.5 if scale is None else scale
        tier: DeviceTier | None = None
        if device_bytes is not None:
            from dovetail.embedding.tiers.device.tier import DeviceTier  # noqa: PLC0415 - torch, which servers do without

            row_width = width + self.optimizer.state_width(width)
            tier = DeviceTier.on(device, row_width, device_bytes=device_bytes, device_rows=device_rows)
        self._store = TieredStore(
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
            device=tier,
            owed=owed,
        )
        self._lock = threading.RLock()
        self._alone = _Alone(self._store, self._lock)
        self._background = Background(self._store, self._lock)
        self._saver = Saver(self._store, self._lock)
        self._lookup = Lookup(self._store, self._lock, ageing_lookups)
        self._update = Update(self._store, self._saver, self.optimizer)
        self._num_expired = 0
        self.on_device: DeviceTable | None = None
        """Rows on a device, for those who train there; None where the table has none."""
        if tier is not None:
            from dovetail.embedding.tiers.device.table import DeviceTable  # noqa: PLC0415 - torch, which servers do without

            self.on_device = DeviceTable(
                tier,
                self._store,
                self._saver,
                self._lookup,
                self.optimizer,
                self._lock,
                shard=shard,
                num_shards=num_shards,
            )

    def lookup(self, keys: ArrayLike, *, insert: bool = True) -> NDArray[np.float32]:
        """Return the values of each key: float32 [len(keys), width].

        A key without a row gets one, or, where `insert` is off, shows its first values and gets none.
        """
        keys = self._own(keys)
        out = np.empty((len(keys), self.width), dtype=np.float32)
        self._background.caller_came()
        with self._open():
            self._lookup.values(keys, out, insert=insert)
            self._background.caller_looked_up()
        return out

    def find(self, keys: NDArray[np.int64]) -> Whereabouts:
        """Say where the rows of keys lie: a slot each, -1 where the row is not in RAM, or not made yet.

        For a thread that works ahead: nothing is moved, made or counted.
        """
        with self._open():
            return Whereabouts(self._store.slots_of(keys), self._store.as_of)

    def lookup_distinct(
        self, keys: ArrayLike, out: NDArray[np.float32] | None = None, *, where: Whereabouts | None = None
    ) -> tuple[NDArray[np.float32], Whereabouts | None]:
        """Return the values of keys that are all different, in `out` where that is given, and where the rows lie.

        What `lookup` does, and faster, in several threads where the table has them. Whoever calls sees to it that no
        key comes twice. None stands for rows that did not fit into RAM at once. `where`, as `find` returned it for
        these very keys, with a slot for each, spares the search for rows that have not moved since.
        """
        keys = as_keys(keys) if where is not None else self._own(keys)
        out = np.empty((len(keys), self.width), dtype=np.float32) if out is None else out
        self._background.caller_came()
        with self._open():
            where = self._lookup.distinct(keys, out, where)
            self._background.caller_looked_up()
        return out, where

    def lookup_pooled(
        self, keys: ArrayLike, offsets: ArrayLike, *, mode: Mode = "sum", insert: bool = True
    ) -> NDArray[np.float32]:
        """Return one vector a bag, the sum or mean of its keys' values; bag b is keys[offsets[b]:offsets[b + 1]]."""
        keys = self._own(keys)
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
        keys = self._own(keys)
        check_bags(begins, ends, len(keys))
        out = np.empty((len(begins), self.width), dtype=np.float32)
        self._background.caller_came()
        with self._open():
            self._lookup.pooled(keys, begins, ends, out, mean=mode == "mean", insert=insert)
            self._background.caller_looked_up()
        return out

    def update(self, keys: ArrayLike, gradients: ArrayLike) -> None:
        """Step the rows of `keys` by their gradients, float32 [len(keys), width]; those of equal keys are summed."""
        keys = self._own(keys)
        gradients = as_gradients(gradients, len(keys), self.width)
        places = np.arange(len(keys) + 1, dtype=np.int64)
        with self._open():
            self._update.bags(keys, places[:-1], places[1:], gradients, mean=False)
            self._background.caller_leaves()

    def update_distinct(
        self, keys: ArrayLike, gradients: ArrayLike, *, scale: float = 1.0, where: Whereabouts | None = None
    ) -> None:
        """Step the rows of keys that are all different: what `update` does, and faster. Whoever calls sees to that.

        With a `scale`, float32 gradients are multiplied by it where they are. `where`, as `lookup_distinct` returned it
        for these very keys, spares the search for rows that have not moved since.
        """
        keys = as_keys(keys) if where is not None else self._own(keys)
        gradients = as_gradients(gradients, len(keys), self.width)
        with self._open():
            self._update.distinct(keys, gradients, scale=scale, where=where)
            self._background.caller_leaves()

    def read_again(self, where: Whereabouts, positions: NDArray[np.int32], out: NDArray[np.float32]) -> bool:
        """Write the values at some positions of a look-up, as they are now, into its `out`; False where rows moved."""
        with self._open():
            return self._lookup.again(where, positions, out)

    def still_holds(self, where: Whereabouts) -> bool:
        """Say whether no row has moved since a look-up said where its rows lie."""
        return where.as_of == self._store.as_of

    def update_pooled(self, keys: ArrayLike, offsets: ArrayLike, gradients: ArrayLike, *, mode: Mode = "sum") -> None:
        """Step the rows of bags by the gradients of their pooled vectors, float32 [bags, width]."""
        keys = self._own(keys)
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
        keys = self._own(keys)
        check_bags(begins, ends, len(keys))
        keys, begins, ends = in_bag_order(keys, begins, ends)
        gradients = as_gradients(gradients, len(begins), self.width)
        with self._open():
            self._update.bags(keys, begins, ends, gradients, mean=mode == "mean")
            self._background.caller_leaves()

    def fill(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Give each key's row these values, and the state of a new row; `keys` are unlike each other."""
        keys = self._own(keys)
        values = as_gradients(values, len(keys), self.width, what="values")
        with self._open():
            self._update.fill(keys, values)

    def write(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Give each key's row these values; its optimizer's state stays. `keys` are unlike each other."""
        keys = self._own(keys)
        values = as_gradients(values, len(keys), self.width, what="values")
        with self._open():
            self._update.write(keys, values)

    def begin_step(self, step: int | None = None, *, factor: float = 1.0) -> None:
        """Have the following updates be of that step, counted from 1, at `factor` times the learning rate.

        Whoever trains says so, as a schedule and the bias of Adam's moments ask; one step may come as several updates.
        With None, as a table begins, every update is a step.
        """
        if step is not None and step < 1:
            raise TableError(f"the step is {step}", hint="the first step has the number 1")
        with self._lock:
            self._update.begin_step(step, factor)
            if self.on_device is not None:
                self.on_device.stepper.begin_step(step, factor)

    def has_had(self, step: int) -> None:
        """Say that the table has had so many steps: rows that owe noise are read and saved as they are after those."""
        if self.owed is not None:
            with self._lock:
                self.owed.step = step

    def limit_norms(self, max_norm: float, *, norm_type: float = 2.0) -> None:
        """Have the following updates scale a row down to `max_norm` before they step it, where its norm is above.

        Whoever looks rows up scales them likewise: this is PyTorch's `max_norm`, a forward pass at a time.
        """
        if self.on_device is not None:
            raise TableError("rows on a device have no max_norm", hint="keep them in host memory: no device_bytes")
        with self._lock:
            self._update.limit_norms(max_norm, norm_type)

    def prefetch(self, keys: ArrayLike, *, ahead: int = 1) -> Future[int]:
        """Bring rows up in the background and keep them for the next `ahead` look-ups; the result counts the fetches.

        Keys without a row are left alone; where rows do not fit, the rest stays below.
        """
        keys = self._own(keys)
        return self._background.prefetch(keys, ahead)

    def prepare(self, upcoming: Sequence[ArrayLike]) -> Future[int]:
        """Get ready for the look-ups after the next one, in the background; the result counts the fetches.

        Rows of `upcoming` that are in RAM are kept for as long as they are needed and there is room; those of the
        first are fetched.
        """
        return self._background.prepare([self._own(keys) for keys in upcoming])

    def expire(self, *, max_age_steps: int | None = None, min_count: int | None = None) -> NDArray[np.int64]:
        """Delete rows not looked up in the last `max_age_steps` updates, or with an aged count below `min_count`.

        Returns their keys; the next checkpoint has a tombstone for each.
        """
        with self._open():
            store, step = self._store, self._store.clock.step
            before = -1 if max_age_steps is None else step - max_age_steps
            expired = store.expired(before=before, below=-1 if min_count is None else min_count)
            for start in range(0, len(expired), MOST_AT_ONCE):
                some = expired[start : start + MOST_AT_ONCE]
                self._saver.bury(some)
                store.remove(some)
            if store.key_log is not None:
                store.key_log.add(step, "expired", expired)
            self._num_expired += len(expired)
        return expired

    def save(self, path: str | Path, *, kind: Kind = "full") -> Checkpoint:
        """Write a checkpoint into the folder `path`; once this returns it is whole and on disk."""
        return self.save_beside(path, kind=kind).result()

    def save_beside(self, path: str | Path, *, kind: Kind = "full") -> Future[Checkpoint]:
        """Write the rows as they are now in the background, while training goes on.

        A `delta` holds the rows changed, and tombstones for those expired, since the last checkpoint of this table.
        """
        with self._open():
            optimizer = described(self.optimizer)
            if self.owed is not None:
                self.owed.save()
                optimizer["looks"] = [list(each) for each in self.owed.looks]
            settings = TableSettings(
                width=self.width,
                optimizer=optimizer,
                seed=self.seed,
                scale=self.scale,
                shard=self.shard,
                num_shards=self.num_shards,
                step=self._store.clock.step,
            )
            return self._saver.begin(Path(path), kind, settings)

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        before: OwedNoise | None = None,
        **options: Unpack[LoadOptions],
    ) -> Table:
        """Return a table with the rows of the newest checkpoint in `path`, or in several: one of each old shard.

        The folder of one checkpoint, such as saved/000002-delta, stands for that one, whatever was saved after it.
        `options` are those of a new table. Budgets and shards may differ from those of the table that was saved: only
        keys of `shard` are taken. Rows that owed noise of another stream `before` get it.
        """
        settings, chains = find_chains(path)
        options["optimizer"] = optimizer_of(settings, options.get("optimizer"))
        table = cls(
            width=settings.width,
            seed=settings.seed,
            scale=settings.scale,
            **options,
        )
        try:
            fill(table._store, chains, shard=table.shard, num_shards=table.num_shards, before=before)
            if table.on_device is not None:
                table.on_device.stepper.set_clock()
        except BaseException:
            table.close()
            raise
        return table

    def rows(self, keys: ArrayLike) -> NDArray[np.float32]:
        """Return whole rows, values then optimizer state, moving and counting nothing; zeros where there is no row."""
        with self._open():
            return self._store.read(as_keys(keys))

    def keys(self) -> NDArray[np.int64]:
        """Return every key that has a row, in no order."""
        with self._open():
            return self._store.keys()

    def counts(self, keys: ArrayLike) -> NDArray[np.int32]:
        """Return the aged access count of each key's row."""
        with self._open():
            return self._store.latest_metadata(as_keys(keys)).counts

    def stats(self) -> TableStats:
        """Return what the table holds and has done."""
        with self._lock:
            return self._store.stats(num_looked_up=self._lookup.num_rows, num_expired=self._num_expired)

    @property
    def has_rows_on_disk(self) -> bool:
        """Say whether there are rows that are not in RAM."""
        return self._store.rows_by_tier[1] > 0

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

    def _open(self) -> contextlib.AbstractContextManager[None]:
        """Have the table to oneself; one that is closed is refused."""
        return self._alone if self.on_device is None else self._with_no_rows_on_their_way()

    @contextlib.contextmanager
    def _with_no_rows_on_their_way(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.on_device is None else self.on_device.paused(), self._alone:
            yield

    def _own(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Return keys as a vector; those of other shards are refused."""
        return own_keys(as_keys(keys), self.shard, self.num_shards)


class _Alone:
    """Has a table's store to itself while it is entered; any thread may enter it again."""

    def __init__(self, store: TieredStore, lock: threading.RLock) -> None:
        self._store, self._lock = store, lock

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._store.must_be_open()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Background:
    """Work beside the caller's: rows are fetched before they are needed, and written back before room is.

    One thread that works on the store under the table's lock.
    """

    def __init__(self, store: TieredStore, lock: threading.RLock) -> None:
        self._store, self._lock = store, lock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dovetail-table")
        self._writing_back = False
        self._left_s = self._pause_s = 0.0
        self._step_looked_up = -1

    def caller_came(self) -> None:
        """Note how long the caller did something else."""
        self._pause_s = time.monotonic() - self._left_s

    def caller_looked_up(self) -> None:
        """Take it as leaving where the look-up before was not followed by an update either: then none will be."""
        step = self._store.clock.step
        if step == self._step_looked_up:
            self.caller_leaves()
        self._step_looked_up = step

    def caller_leaves(self) -> None:
        """Have some of the least used rows written, where there is little room and, going by the last time, time."""
        self._left_s = time.monotonic()
        if self._pause_s > SHORTEST_PAUSE_S:
            self._write_back_soon()

    def prefetch(self, keys: NDArray[np.int64], ahead: int) -> Future[int]:
        """Bring rows up and keep them for the next `ahead` look-ups; the result counts the fetches."""
        return self._pool.submit(self._prefetch, keys, ahead)

    def prepare(self, batches: list[NDArray[np.int64]]) -> Future[int]:
        """Keep what the batches after the next one need, and fetch for the first; the result counts the fetches."""
        return self._pool.submit(self._prepare, batches)

    def close(self) -> None:
        """Wait for what is under way, and leave the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, batches: list[NDArray[np.int64]]) -> int:
        """Mark what is needed, then fetch for the first batch."""
        for distance, keys in enumerate(batches):
            with self._lock:
                if self._store.closed:
                    return 0
                self._store.need(keys, self._store.clock.batch + distance + 2)
        return self._prefetch(batches[0], 2) if batches else 0

    def _prefetch(self, keys: NDArray[np.int64], ahead: int) -> int:
        """Fetch in parts, so that nobody waits long."""
        unique = np.unique(keys)
        fetched = 0
        for start in range(0, len(unique), MOST_AT_ONCE):
            part = unique[start : start + MOST_AT_ONCE]
            with self._lock:
                if self._store.closed:
                    return fetched
                before = self._store.num_fetched
                held = self._store.hold(self._store.not_on_device(part), insert=False)
                if held is None:
                    return fetched
                self._store.keep_until(held, self._store.clock.batch + ahead)
                fetched += self._store.num_fetched - before
        return fetched

    def _write_back_soon(self) -> None:
        """Write back after what is under way."""
        if self._store.eviction.is_short and not self._writing_back:
            self._writing_back = True
            self._pool.submit(self._write_back, self._store.clock.operation)

    def _write_back(self, done_with: int) -> None:
        """Evict until a little room is free; not now, where somebody is at work on the table."""
        try:
            if self._lock.acquire(blocking=False):
                try:
                    if not self._store.closed:
                        self._store.eviction.evict_ahead(done_with=done_with)
                finally:
                    self._lock.release()
        finally:
            self._writing_back = False
