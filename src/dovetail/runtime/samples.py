"""The samples of a run, by their positions in the order of an epoch."""

from __future__ import annotations

from dovetail.data.batch import Batch, concatenate
from dovetail.data.loader import Loader
from dovetail.data.source import Source
from dovetail.models.task import UNIT_LOSSES, check_unit_labels
from dovetail.runtime.blueprint import Blueprint


class Samples:
    """Reads any range of an epoch; blocks that were just read are at hand for the next range."""

    def __init__(self, blueprint: Blueprint, source: Source) -> None:
        """Keep what the order depends on."""
        self._blueprint, self._source = blueprint, source
        self._epoch = -1
        self._loader: Loader | None = None

    def read(self, epoch: int, first: int, last: int) -> Batch:
        """Return the samples at positions `first` up to but not including `last`."""
        if self._loader is None or epoch != self._epoch:
            run = self._blueprint.run
            self._epoch = epoch
            self._loader = Loader(
                self._source,
                batch_size=1,
                seed=run.training.seed,
                epoch=epoch,
                shuffle=run.data.shuffle,
                num_samples=self._blueprint.all_samples,
                prefetch=0,
                pin=False,
                block_samples=run.data.block_samples,
            )
        portion = self._blueprint.portion
        places = [(first, last)] if portion is None else portion.places(first, last) or [(0, 0)]
        batch = concatenate([self._loader.read(*place) for place in places])
        loss = self._blueprint.run.model.loss
        if loss in UNIT_LOSSES:
            check_unit_labels(str(loss), batch.labels)
        return batch
