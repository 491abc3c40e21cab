"""One class users see: an embedding table for any int64 keys whose hot rows sit in RAM and cold rows on disk."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.embedding.arrays import as_bags, as_gradients, as_keys, check_bags, in_bag_order
from dovetail.embedding.checkpoint import Checkpoint, Kind, Settings
from dovetail.embedding.distinct import Whereabouts
from dovetail.embedding.errors import TableError
from dovetail.embedding.expiry import expire
from dovetail.embedding.loading import LoadOptions, fill, find_chains, optimizer_of
from dovetail.embedding.open_table import OpenTable
from dovetail.embedding.row_optimizer import described

Mode = Literal["sum", "mean"]


class Table(OpenTable):
    """Rows of `width` values and their optimizer state, made on first use, for any int64 keys.

    The rows in RAM (at most `host_rows`, where given) and the index of all rows stay within `host_bytes`; the others
    lie in `folder`. Where a row lies never shows in its bits (but for `cold_precision` below float32). Any thread may
    call any method.
    """

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

    def lookup_distinct(
        self, keys: ArrayLike, out: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], Whereabouts | None]:
        """Return the values of keys that are all different, in `out` where that is given, and where the rows lie.

        What `lookup` does, and faster, in several threads where the table has them. Whoever calls sees to it that no
        key comes twice. None stands for rows that did not fit into RAM at once.
        """
        keys = self._own(keys)
        out = np.empty((len(keys), self.width), dtype=np.float32) if out is None else out
        self._background.caller_came()
        with self._open():
            where = self._lookup.distinct(keys, out)
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
        return where.as_of == self._store.distinct.as_of

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

    def set_rate_factor(self, factor: float) -> None:
        """Have the following updates use `factor` times the optimizer's learning rate, as a schedule asks."""
        with self._lock:
            self._update.set_rate_factor(factor)
            if self.on_device is not None:
                self.on_device.set_rate_factor(factor)

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
            expired = expire(self._store, self._saver, max_age_steps=max_age_steps, min_count=min_count)
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
            settings = Settings(
                width=self.width,
                optimizer=described(self.optimizer),
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
        **options: Unpack[LoadOptions],
    ) -> Table:
        """Return a table with the rows of the newest checkpoint in `path`, or in several: one of each old shard.

        The folder of one checkpoint, such as saved/000002-delta, stands for that one, whatever was saved after it.
        `options` are those of a new table. Budgets and shards may differ from those of the table that was saved: only
        keys of `shard` are taken.
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
            fill(table._store, chains, shard=table.shard, num_shards=table.num_shards)
            if table.on_device is not None:
                table.on_device.set_clock()
        except BaseException:
            table.close()
            raise
        return table

    def rows(self, keys: ArrayLike) -> NDArray[np.float32]:
        """Return whole rows, values then optimizer state, moving and counting nothing; zeros where there is no row."""
        with self._open():
            return self._store.anywhere.read(as_keys(keys))

    def keys(self) -> NDArray[np.int64]:
        """Return every key that has a row, in no order."""
        with self._open():
            return self._store.facts.keys()

    def counts(self, keys: ArrayLike) -> NDArray[np.int32]:
        """Return the aged access count of each key's row."""
        with self._open():
            return self._store.anywhere.facts(as_keys(keys)).counts
