"""The samples of a run, by their positions in the order of an epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from dovetail.data.ahead import MadeAhead
from dovetail.data.batch import Batch
from dovetail.data.loader import Loader
from dovetail.data.poisson import PoissonOrder
from dovetail.data.source import Source
from dovetail.models.task import UNIT_LOSSES, check_unit_labels
from dovetail.privacy.keys import derived
from dovetail.runtime.blueprint import Blueprint

AHEAD = 4
"""Batches that are read before they are asked for."""
THREAD_NAME = "dovetail-samples"


class Samples:
    """Reads any range of an epoch, or all batches from a position on; any thread may."""

    def __init__(self, blueprint: Blueprint, source: Source, *, sampling_key: bytes = b"", pin: bool = False) -> None:
        """Keep what the order depends on, in a private run a secret as well; with `pin`, batches are page-locked."""
        self._blueprint, self._source, self._pin = blueprint, source, pin
        self._sampling_key = sampling_key
        self._loaders: dict[int, Loader] = {}
        self._lock = threading.Lock()

    @property
    def reads_serially(self) -> bool:
        """Whether the data are read by one thread at a time."""
        return bool(getattr(self._source, "reads_serially", False))

    def read(self, epoch: int, first: int, last: int) -> Batch:
        """Return the samples at positions `first` up to but not including `last`."""
        portion = self._blueprint.portion
        places = [(first, last)] if portion is None else portion.places(first, last) or [(0, 0)]
        batch = self._loader(epoch).read_all(places)
        loss = self._blueprint.run.model.loss
        if loss in UNIT_LOSSES:
            check_unit_labels(str(loss), batch.labels)
        return batch

    def batches(
        self, position: int, *, batch: int | None = None, ahead: int = AHEAD, readers: int | None = None
    ) -> MadeAhead[tuple[int, int, int], tuple[Batch, int]]:
        """Return all batches from a position of the run on, over epochs, in order, each with the position after it.

        To be iterated, or taken one by one with `take()`; `waited_s` says how long whoever takes them has waited. They
        are read ahead, by as many threads as keep it from waiting, or by `readers`. A batch has the run's size where
        `batch` says no other, and ends with its epoch.
        """
        return MadeAhead(
            self._places(position, batch or self._blueprint.batch),
            self._read_place,
            ahead=ahead,
            readers=readers,
            most=1 if self.reads_serially else None,
            name=THREAD_NAME,
        )

    def _read_place(self, place: tuple[int, int, int]) -> tuple[Batch, int]:
        epoch, first, last = place
        return self.read(epoch, first, last), epoch * self._blueprint.samples + last

    def _places(self, position: int, batch: int) -> Iterator[tuple[int, int, int]]:
        """Yield epoch, first and last of one batch after the other."""
        samples, epochs = self._blueprint.samples, self._blueprint.run.training.epochs
        while position < samples * epochs:
            epoch, first = divmod(position, samples)
            last = min(samples, first + batch)
            yield epoch, first, last
            position += last - first

    def _loader(self, epoch: int) -> Loader:
        """Return what reads an epoch; those of the last two are kept, as batches are read ahead."""
        with self._lock:
            if epoch not in self._loaders:
                run, all_samples = self._blueprint.run, self._blueprint.all_samples
                while len(self._loaders) > 1:
                    del self._loaders[next(iter(self._loaders))]
                self._loaders[epoch] = Loader(
                    self._source,
                    batch_size=self._blueprint.batch,
                    seed=run.training.seed,
                    epoch=epoch,
                    shuffle=run.data.shuffle,
                    num_samples=all_samples,
                    prefetch=0,
                    pin=self._pin,
                    block_samples=run.data.block_samples,
                    window_samples=run.data.window_samples or all_samples,  # runs of before have one window
                    order=self._drawn_order(epoch),
                )
            return self._loaders[epoch]

    def _drawn_order(self, epoch: int) -> PoissonOrder | None:
        """Return which samples the steps of an epoch draw, where the run is private."""
        private = self._blueprint.private
        if private is None:
            return None
        return PoissonOrder(
            num_samples=private.samples,
            batch=private.batch,
            key=derived(self._sampling_key, private.stream),
            epoch=epoch,
            block_samples=self._blueprint.run.data.block_samples,
            parts=getattr(self._source, "parts", None),
        )


def tell_of_bad_rows(source: Source, tell: Callable[[str], None]) -> None:
    """Say how many rows were left out, and why, where there were any."""
    bad = getattr(source, "bad_rows", None)
    if bad is not None and bad.total:
        tell(bad.summary())
