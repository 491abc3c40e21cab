"""Batches in the background: read, shuffled, of the right size, and ready before they are asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from dovetail.data.batch import Batch, concatenate
from dovetail.data.errors import DataError
from dovetail.data.order import BLOCK_SAMPLES, Order
from dovetail.data.schema import Schema
from dovetail.data.source import Source

THREAD_NAME = "dovetail-loader"


class Loader:
    """The batches of one epoch of a source, in the order of (seed, epoch).

    Batch k holds the samples at positions k * batch_size and on; broken samples leave it smaller. `position` says how
    many samples were handed out: a loader started there goes on with the very next one, whatever the batch size. In
    epoch e the ids of a source of n samples are raised by e * n, so that draws that belong to a sample differ from
    epoch to epoch.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        start: int = 0,
        stop: int | None = None,
        num_samples: int | None = None,
        prefetch: int = 4,
        readers: int = 1,
        pin: bool | None = None,
        block_samples: int = BLOCK_SAMPLES,
    ) -> None:
        """Describe what to load; nothing is read before the first batch is asked for.

        `start` and `stop` are positions in the order, so any range can be loaded alone. `num_samples` is how many of
        the source's samples, from the first on, make up the epoch; absent, it is all of them. `readers` threads keep
        `prefetch` batches ready (and as many blocks ahead, where samples are shuffled); with a prefetch of 0 the
        caller's own thread reads. `pin` puts batches into page-locked memory; absent, it does where there is a GPU.
        """
        if min(batch_size, readers) < 1 or min(start, prefetch) < 0:
            raise DataError(
                f"a loader of batches of {batch_size} from sample {start}, {prefetch} ahead by {readers} readers",
                hint="batch_size and readers are at least 1, start and prefetch at least 0",
            )
        self._source = source
        self._schema: Schema | None = None
        limits = [limit for limit in (num_samples, source.num_samples) if limit is not None]
        self._order = Order(
            num_samples=min(limits, default=None), seed=seed, epoch=epoch, shuffle=shuffle, block_samples=block_samples
        )
        self._batch_size, self._prefetch, self._readers = batch_size, prefetch, readers
        ends = [end for end in (stop, self._order.num_samples) if end is not None]
        self._stop = min(ends) if ends else None
        self._pin = torch.cuda.is_available() if pin is None else pin
        self._blocks: OrderedDict[int, Future[Batch]] = OrderedDict()
        self._lock = threading.Lock()
        self.position = start

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that are left; leaving the loop early stops the reading."""
        return self._iterate_ahead() if self._prefetch else self._iterate_here()

    def at_epoch(self, epoch: int) -> Loader:
        """Return a loader of the same data from the start of another epoch."""
        other = Loader(
            self._source,
            batch_size=self._batch_size,
            prefetch=self._prefetch,
            readers=self._readers,
            stop=self._stop,
            pin=self._pin,
        )
        other._order = replace(self._order, epoch=epoch)
        return other

    def _iterate_here(self) -> Iterator[Batch]:
        """Yield batches read on demand."""
        while (batch := self._batch_at(self.position)) is not None:
            self.position = self._end_of(self.position)
            if batch.num_samples:
                yield batch

    def _iterate_ahead(self) -> Iterator[Batch]:
        """Yield batches that threads read ahead, in order; what goes wrong there is raised here."""
        waiting: deque[tuple[int, Future[Batch | None]]] = deque()
        position = self.position
        pool = ThreadPoolExecutor(self._readers, thread_name_prefix=THREAD_NAME)
        try:
            while True:
                while len(waiting) < max(self._prefetch, self._readers) and position < self._end_of(position):
                    self._warm(pool, position)
                    waiting.append((self._end_of(position), pool.submit(self._batch_at, position)))
                    position = self._end_of(position)
                if not waiting:
                    return
                end, batch = waiting[0][0], waiting[0][1].result()
                waiting.popleft()
                self.position = end
                if batch is not None and batch.num_samples:
                    yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _warm(self, pool: ThreadPoolExecutor, position: int) -> None:
        """Have the blocks read that other readers will need while this one works on its own."""
        if not self._order.shuffle or self._readers == 1:
            return
        for ahead in range(self._readers):
            there = position + ahead * self._order.block_samples
            for stretch in self._order.stretches(there, min(there + 1, self._end_of(there))):
                with self._lock:
                    known = stretch.first_sample in self._blocks
                if not known:
                    pool.submit(self._block, stretch.first_sample, stretch.last_sample)

    def _end_of(self, position: int) -> int:
        """Return where the batch that begins at a position ends."""
        end = position + self._batch_size
        return end if self._stop is None else max(position, min(end, self._stop))

    def _batch_at(self, position: int) -> Batch | None:
        """Return the batch that begins at a position, or None past the end."""
        end = self._end_of(position)
        return self.read(position, end) if end > position else None

    def read(self, first: int, last: int) -> Batch:
        """Return the samples at positions `first` up to but not including `last`, whatever was handed out so far."""
        if self._order.shuffle:
            pieces = [
                _picked(
                    self._block(stretch.first_sample, stretch.last_sample),
                    stretch.first_sample,
                    stretch.last_sample,
                    torch.from_numpy(stretch.picks),
                )
                for stretch in self._order.stretches(first, last)
            ]
        else:  # blocks make no difference then
            end = last if self._order.num_samples is None else min(last, self._order.num_samples)
            pieces = [self._read(first, end)] if end > first else []
        batch = concatenate(pieces)
        if self._order.epoch and self._order.num_samples:
            batch = batch.with_sample_ids(batch.sample_ids + self._order.epoch * self._order.num_samples)
        return batch.pinned() if self._pin else batch

    def _read(self, first: int, last: int) -> Batch:
        """Return samples from the source, and refuse what does not fit its own schema."""
        batch: object = self._source.read(first, last)
        if not isinstance(batch, Batch):
            raise DataError(f"the data returned a {type(batch).__name__}", hint="read() returns a dovetail.data.Batch")
        if self._schema is None:
            self._schema = self._source.schema
        schema = self._schema
        slots = batch.num_slots if batch.num_samples else schema.num_slots
        if slots != schema.num_slots or batch.dense.shape[1] != schema.num_dense:
            raise DataError(
                f"samples have {slots} slots and {batch.dense.shape[1]} numbers, their schema {schema.num_slots} and "
                f"{schema.num_dense}",
                hint="make `schema` and what read() returns agree",
            )
        if batch.num_samples and batch.extra.keys() != {field.name for field in schema.fields}:
            raise DataError(
                f"samples have the further fields {sorted(batch.extra)}, their schema "
                f"{sorted(field.name for field in schema.fields)}",
                hint="make `schema` and what read() returns agree",
            )
        return batch

    def _block(self, first: int, last: int) -> Batch:
        """Return a block of the data, read by whoever asks first; the last few are kept."""
        with self._lock:
            mine = first not in self._blocks
            block = self._blocks.setdefault(first, Future())
            while len(self._blocks) > self._readers + 2:
                self._blocks.popitem(last=False)
        if mine:
            try:
                block.set_result(self._read(first, last))
            except BaseException as problem:
                with self._lock:
                    self._blocks.pop(first, None)  # who asks later tries again
                block.set_exception(problem)  # for those who wait for it now
                raise
        return block.result()


def _picked(block: Batch, first: int, last: int, picks: torch.Tensor) -> Batch:
    """Return samples of a block in the order of `picks`, those that are broken left out."""
    if block.num_samples == last - first:
        return block.take(picks)
    place_of = torch.full((last - first,), -1, dtype=torch.int64)
    place_of[block.sample_ids - first] = torch.arange(block.num_samples)
    places = place_of[picks]
    return block.take(places[places >= 0])
