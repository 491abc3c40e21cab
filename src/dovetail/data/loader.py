"""Batches in the background: read, shuffled, cut to size, and ready before they are asked for."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

import torch

from dovetail.data.batch import Batch, concatenate
from dovetail.data.errors import DataError
from dovetail.data.order import BLOCK_SAMPLES, Order
from dovetail.data.source import Source

_BLOCKS_IN_MEMORY = 2


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
        prefetch: int = 4,
        pin: bool | None = None,
        block_samples: int = BLOCK_SAMPLES,
    ) -> None:
        """Describe what to load; nothing is read before the first batch is asked for.

        `start` and `stop` are positions in the order, so that a lease can be loaded alone. `pin` puts batches into
        page-locked memory (absent: where there is a GPU), and `prefetch` is how many wait at most; 0 reads in the
        caller's own thread.
        """
        if batch_size < 1 or start < 0 or prefetch < 0:
            raise DataError(
                f"a loader of batches of {batch_size} from sample {start} with {prefetch} ahead",
                hint="batch_size is at least 1, start and prefetch at least 0",
            )
        self._source = source
        self._order = Order(
            num_samples=source.num_samples, seed=seed, epoch=epoch, shuffle=shuffle, block_samples=block_samples
        )
        self._batch_size, self._prefetch = batch_size, prefetch
        ends = [end for end in (stop, source.num_samples) if end is not None]
        self._stop = min(ends) if ends else None
        self._pin = torch.cuda.is_available() if pin is None else pin
        self._blocks: OrderedDict[int, Batch] = OrderedDict()
        self.position = start

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that are left; leaving the loop early stops the reading."""
        return self._iterate_ahead() if self._prefetch else self._iterate_here()

    def at_epoch(self, epoch: int) -> Loader:
        """Return a loader of the same data from the start of another epoch."""
        other = Loader(
            self._source, batch_size=self._batch_size, prefetch=self._prefetch, stop=self._stop, pin=self._pin
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
        """Yield batches that a thread reads ahead; what goes wrong there is raised here."""
        ready: queue.Queue[tuple[int, Batch | BaseException | None]] = queue.Queue(maxsize=self._prefetch)
        stopped = threading.Event()
        reader = threading.Thread(
            target=self._read_ahead, args=(self.position, ready, stopped), name="dovetail-loader", daemon=True
        )
        reader.start()
        try:
            while True:
                end, found = ready.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    return
                self.position = end
                if found.num_samples:
                    yield found
        finally:
            stopped.set()
            while reader.is_alive():  # a reader that waits for room sees the event once there is some
                _drain(ready)
                reader.join(timeout=0.01)

    def _read_ahead(
        self,
        position: int,
        ready: queue.Queue[tuple[int, Batch | BaseException | None]],
        stopped: threading.Event,
    ) -> None:
        """Fill the queue until the end, an error, or the event."""
        try:
            while not stopped.is_set():
                batch = self._batch_at(position)
                position = self._end_of(position)
                ready.put((position, batch))
                if batch is None:
                    return
        except BaseException as problem:  # whatever it is belongs to whoever asked for the batch
            ready.put((position, problem))

    def _end_of(self, position: int) -> int:
        """Return where the batch that begins at a position ends."""
        end = position + self._batch_size
        return end if self._stop is None else max(position, min(end, self._stop))

    def _batch_at(self, position: int) -> Batch | None:
        """Return the batch that begins at a position, or None past the end."""
        end = self._end_of(position)
        if end <= position:
            return None
        pieces = []
        for stretch in self._order.stretches(position, end):
            if self._order.shuffle:
                block = self._block(stretch.first_sample, stretch.last_sample)
                pieces.append(
                    _picked(block, stretch.first_sample, stretch.last_sample, torch.from_numpy(stretch.picks))
                )
            else:
                first = stretch.first_sample + int(stretch.picks[0])
                pieces.append(self._source.read(first, first + len(stretch.picks)))
        batch = concatenate(pieces)
        if self._order.epoch and self._order.num_samples:
            batch = batch.with_sample_ids(batch.sample_ids + self._order.epoch * self._order.num_samples)
        return batch.pinned() if self._pin else batch

    def _block(self, first: int, last: int) -> Batch:
        """Return a block of the data, the last few of them kept."""
        if first not in self._blocks:
            self._blocks[first] = self._source.read(first, last)
            while len(self._blocks) > _BLOCKS_IN_MEMORY:
                self._blocks.popitem(last=False)
        return self._blocks[first]


def _picked(block: Batch, first: int, last: int, picks: torch.Tensor) -> Batch:
    """Return samples of a block in the order of `picks`, those that are broken left out."""
    if block.num_samples == last - first:
        return block.take(picks)
    place_of = torch.full((last - first,), -1, dtype=torch.int64)
    place_of[block.sample_ids - first] = torch.arange(block.num_samples)
    places = place_of[picks]
    return block.take(places[places >= 0])


def _drain(ready: queue.Queue[tuple[int, Batch | BaseException | None]]) -> None:
    """Empty a queue."""
    try:
        while True:
            ready.get_nowait()
    except queue.Empty:
        return
