"""Batches in the background: read, shuffled, of the right size, and ready before they are asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.data.ahead import MadeAhead
from dovetail.data.batch import Batch
from dovetail.data.errors import DataError
from dovetail.data.order import BLOCK_SAMPLES, Order, window_of
from dovetail.data.packed import PackedSamples, viewed
from dovetail.data.schema import Schema
from dovetail.data.source import ExpectsReads, Gathers, Source

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
        readers: int | None = None,
        pin: bool | None = None,
        block_samples: int = BLOCK_SAMPLES,
        window_samples: int | None = None,
        order: Order | None = None,
    ) -> None:
        """Describe what to load; nothing is read before the first batch is asked for.

        `start` and `stop` are positions in the order, so any range can be loaded alone. `num_samples` is how many of
        the source's samples, from the first on, make up the epoch; absent, it is all of them. `readers` threads keep
        `prefetch` batches ready; absent, as many as keep whoever takes them from waiting, up to the number of cores.
        With a prefetch of 0 the caller's own thread reads. `pin` puts batches into page-locked memory; absent, it does
        where there is a GPU. `window_samples` is how many samples are drawn from at once; see `dovetail.data.order`.
        An `order` stands for all that says which samples come when.
        """
        if min(batch_size, 1 if readers is None else readers) < 1 or min(start, prefetch) < 0:
            raise DataError(
                f"a loader of batches of {batch_size} from sample {start}, {prefetch} ahead by {readers} readers",
                hint="batch_size and readers are at least 1, start and prefetch at least 0",
            )
        self._source = source
        self._gathers = source if isinstance(source, Gathers) else None
        self._expects = source if isinstance(source, ExpectsReads) else None
        self._schema: Schema | None = None
        limits = [limit for limit in (num_samples, source.num_samples) if limit is not None]
        self._order = order or Order(
            num_samples=min(limits, default=None),
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
            block_samples=block_samples,
            window_samples=window_of(source.schema) if window_samples is None else window_samples,
            parts=getattr(source, "parts", None),
        )
        self._batch_size, self._prefetch, self._readers = batch_size, prefetch, readers
        size = self._order.block_samples
        self._most_blocks = max(4, 4 * (batch_size // size))
        if order is not None:  # its batches are from all over the data
            self._most_blocks = max(self._most_blocks, window_of(source.schema) // size)
        ends = [end for end in (stop, self._order.num_samples) if end is not None]
        self._stop = min(ends) if ends else None
        self._pin = torch.cuda.is_available() if pin is None else pin
        self._blocks: OrderedDict[int, Future[PackedSamples]] = OrderedDict()
        self._lock = threading.Lock()
        self._expected = (-1, -1)
        self.position = start
        self.waited_s = 0.0
        """How long whoever takes batches has waited for them."""

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
        for first, last in self._ranges():
            batch = self.read(first, last)
            self.position = last
            if batch.num_samples:
                yield batch

    def _iterate_ahead(self) -> Iterator[Batch]:
        """Yield batches that threads read ahead, in order; what goes wrong there is raised here."""
        made = MadeAhead(
            self._ranges(),
            lambda place: (self.read(*place), place[1]),
            ahead=self._prefetch,
            readers=self._readers,
            most=1 if getattr(self._source, "reads_serially", False) else None,
            name=THREAD_NAME,
        )
        for batch, end in made:
            self.position, self.waited_s = end, made.waited_s
            if batch.num_samples:
                yield batch

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the positions of batch after batch."""
        first = self.position
        while self._stop is None or first < self._stop:
            last = first + self._batch_size if self._stop is None else min(first + self._batch_size, self._stop)
            yield first, last
            first = last

    def read(self, first: int, last: int) -> Batch:
        """Return the samples at positions `first` up to but not including `last`, whatever was handed out so far."""
        return self.read_all([(first, last)])

    def read_all(self, places: Sequence[tuple[int, int]]) -> Batch:
        """Return the samples at several ranges of positions as one batch, which may be empty."""
        if all(first >= last for first, last in places):
            return self._one_sample().slice(0, 0)  # what a batch of these data is like
        order = self._order
        shift = order.epoch * order.num_samples if order.num_samples else 0
        for first, _ in places[:1]:
            self._expect(first)
        if self._gathers is not None:
            samples = [order.sample_ids(first, last) for first, last in places]
            whole = samples[0] if len(samples) == 1 else np.concatenate(samples)
            if not len(whole):
                return self._one_sample().slice(0, 0)
            return self._checked(self._gathers.gather(whole, shift=shift, pin=self._pin))
        if not order.shuffle and len(places) == 1:  # blocks make no difference then
            first, last = places[0]
            batch = self._read(first, last if order.num_samples is None else max(first, min(last, order.num_samples)))
            batch = batch.with_sample_ids(batch.sample_ids + shift) if shift else batch
            return batch.pinned() if self._pin else batch
        return self._from_blocks(places, shift)

    def _one_sample(self) -> Batch:
        """Return the first sample of the data."""
        if self._gathers is not None:
            return self._checked(self._gathers.gather(np.zeros(1, dtype=np.int64), pin=self._pin))
        return self._read(0, 1)

    def _from_blocks(self, places: Sequence[tuple[int, int]], shift: int) -> Batch:
        """Return samples of a source that reads ranges: the blocks that hold them are read whole."""
        from dovetail.data.assembling import assemble  # noqa: PLC0415 - compiles

        stretches = [stretch for first, last in places for stretch in self._order.stretches(first, last)]
        if not stretches:
            return self._one_sample().slice(0, 0)
        bounds = sorted({(stretch.first_sample, stretch.last_sample) for stretch in stretches})
        blocks = [self._block(*ends) for ends in bounds]
        samples = [stretch.first_sample + stretch.picks for stretch in stretches]
        firsts = np.array([first for first, _ in bounds], dtype=np.int64)
        return assemble(np.concatenate(samples), blocks, firsts, shift=shift, pin=self._pin)

    def _expect(self, position: int) -> None:
        """Tell a source that decodes what comes next: this window's parts, and more and more of the next one's."""
        if self._expects is None:
            return
        ranges = self._coming(position)
        if ranges is not None:
            self._expects.expect(ranges)

    def _coming(self, position: int) -> NDArray[np.int64] | None:
        """Return the samples that come next, as ranges of parts; None where that was told before."""
        windows = self._order.windows
        if not windows:  # in the order of the data: what comes next, so far ahead as a window is long
            ahead = self._order.window_samples or BLOCK_SAMPLES
            if self._told(position * 4 // ahead, 0):
                return None
            end = (
                position + ahead if self._order.num_samples is None else min(position + ahead, self._order.num_samples)
            )
            return np.array([[position, end]], dtype=np.int64)
        number = self._order.window_at(position)
        if number >= len(windows):
            return None
        here, following = windows[number], windows[number + 1 : number + 2]
        share = (position - here.first) / max(1, here.last - here.first)
        more = [window.parts[: int(share * len(window.parts)) + 1] for window in following]
        if self._told(number, sum(map(len, more))):
            return None
        return np.concatenate([here.parts, *more])

    def _told(self, window: int, more: int) -> bool:
        """Say whether so much was told before; readers may be a little behind each other."""
        with self._lock:
            if (window, more) <= self._expected and window >= self._expected[0] - 1:
                return True
            self._expected = (window, more)
            return False

    def _read(self, first: int, last: int) -> Batch:
        """Return samples from the source, and refuse what does not fit its own schema."""
        return self._checked(self._source.read(first, last))

    def _checked(self, batch: object) -> Batch:
        """Refuse what is no batch, or does not fit its own schema."""
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

    def _block(self, first: int, last: int) -> PackedSamples:
        """Return a block of the data, read by whoever asks first; the last few are kept."""
        with self._lock:
            mine = first not in self._blocks
            block = self._blocks.setdefault(first, Future())
            self._blocks.move_to_end(first)
            while len(self._blocks) > self._most_blocks:
                self._blocks.popitem(last=False)
        if mine:
            try:
                slots = self._source.schema.num_slots
                block.set_result(viewed(self._read(first, last), first=first, last=last, num_slots=slots))
            except BaseException as problem:
                with self._lock:
                    self._blocks.pop(first, None)  # who asks later tries again
                block.set_exception(problem)  # for those who wait for it now
                raise
        return block.result()
