"""Which ids of a batch a layer looks up, learnt by watching it once: so the rows of later batches are fetched ahead.

What is learnt is a guess that costs nothing when it is wrong: rows that a model asks for and that are not here yet are
fetched when it asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dovetail.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Pattern:
    """A view of a batch's ids: all of them, or the same few of every sample."""

    per_sample: int | None
    """Ids that each sample has; None where the view is all ids, whatever their number."""
    shape: tuple[int, ...] = ()
    """Of the view, without the samples."""
    stride: tuple[int, ...] = ()
    offset: int = 0

    def keys(self, batch: Batch) -> Tensor | None:
        """Return the ids of another batch that the same view would show; None where it has no such view."""
        if self.per_sample is None:
            return batch.ids
        if batch.ids.numel() != batch.num_samples * self.per_sample or not batch.num_samples:
            return None
        view = batch.ids.as_strided(
            (batch.num_samples, *self.shape), (self.per_sample, *self.stride), batch.ids.storage_offset() + self.offset
        )
        return view.reshape(-1)


def pattern_of(ids: Tensor, batch: Batch) -> Pattern | None:
    """Return what view of a batch's ids some tensor is; None where it is none."""
    whole = batch.ids
    same_memory = ids.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    if not whole.numel() or ids.dtype != whole.dtype or not same_memory:
        return None
    if ids.numel() == whole.numel() and ids.data_ptr() == whole.data_ptr() and ids.is_contiguous():
        return Pattern(per_sample=None)
    per_sample = whole.numel() // batch.num_samples
    if ids.dim() < 1 or ids.shape[0] != batch.num_samples or per_sample * batch.num_samples != whole.numel():
        return None
    if ids.stride()[0] != per_sample and batch.num_samples > 1:
        return None
    offset = int(ids.storage_offset() - whole.storage_offset())
    return Pattern(per_sample=per_sample, shape=tuple(ids.shape[1:]), stride=ids.stride()[1:], offset=offset)
