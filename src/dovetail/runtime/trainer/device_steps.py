"""How a run on one device computes a step: forward, backward, and the rows' update; dense parameters are stepped after.

`FreeSteps` takes any model. `KnownSteps` takes models whose look-ups are known before they run: all rows of a table
come at once, nothing of a batch is copied while the device waits, and on CUDA steps of one size are captured and
replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.embedding.tiers.device.captured_step import CapturedSteps, Record
from dovetail.embedding.tiers.device.prefetched_batch import BatchPlaces
from dovetail.embedding.tiers.device.table import DeviceTable
from dovetail.runtime.trainer.device_rows import DeviceRows
from dovetail.runtime.trainer.steps import Tell
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.prefetch import PrefetchableLookUp, fields_beside

MOST_GRAPHS = 8
"""Sizes of batches whose steps are captured; each holds the memory of a step."""
SIZE_BITS = 5
"""Numbers of keys are rounded up to so many binary digits where they differ from batch to batch."""


class FreeSteps:
    """Steps of any model, operation by operation; it may look up what it likes, when it likes."""

    def __init__(self, model: ServedModel, rows: DeviceRows) -> None:
        self._model, self._rows = model, rows

    @property
    def waited_s(self) -> float:
        """How long look-ups have waited for rows."""
        return self._rows.waited_s

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch: what it looks up is known only while the model runs."""
        return batch

    def announce(self, prepared: Batch) -> None:
        """Have the rows of a batch to come brought to the device, those that are known."""
        self._rows.announce(self._model.asked(prepared))

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Compute a batch and step its rows."""
        device = self._model.device
        with self._model.computing():
            loss, scores = self._model.outcome(
                batch if device.type == "cpu" else batch.pinned().to(device, non_blocking=True)
            )
        loss.backward()  # type: ignore[no-untyped-call]
        self._rows.step(step, scale=scale, factor=factor)
        return loss, scores


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What one batch looks up: where each look-up's keys lie among its table's, and the bags where they are not one."""

    spans: tuple[slice, ...]
    bags: tuple[Tensor | None, ...]
    keys: tuple[NDArray[np.int64], ...] = ()
    """Of each table."""
    arrays: tuple[NDArray[Any], ...] = ()
    """What else of the batch is wanted on the device."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    loss: Tensor
    scores: Any
    stepped: tuple[bool, ...]
    """By table: whether the loss depends on its rows."""


class KnownSteps:
    """Steps of a model whose look-ups are all known."""

    def __init__(
        self,
        model: ServedModel,
        tables: Sequence[DeviceTable],
        look_ups: Sequence[PrefetchableLookUp],
        *,
        record: Record | None,
        tell: Tell,
    ) -> None:
        """Take the layers over; `record` captures a step, and `tell` hears where it cannot."""
        self._model, self._tables, self._look_ups = model, tables, look_ups
        self._is_captured = record is not None
        self._captured: CapturedSteps[_Outcome] = CapturedSteps(tables, record=record, most=MOST_GRAPHS, tell=tell)
        self._fields = fields_beside(model.graph, look_ups)
        self._asked: deque[_Asked] = deque()
        self._now: tuple[_Asked, list[Tensor], int] | None = None
        for number, look_up in enumerate(look_ups):
            look_up.take_from(self._values_of(number))

    @property
    def waited_s(self) -> float:
        """How long look-ups have waited for rows."""
        return self._captured.waited_s

    def prepare(self, batch: Batch) -> _Asked:
        """Return what a batch looks up, and what the layers read of it."""
        keys: list[list[NDArray[np.int64]]] = [[] for _ in self._tables]
        spans, all_bags = [], []
        for look_up in self._look_ups:
            mine, bags = look_up.asked(batch)
            if bags is not None and self._is_captured:
                mine, bags = _rounded_up(mine, bags)
            begin = sum(map(len, keys[look_up.table]))
            keys[look_up.table].append(mine)
            spans.append(slice(begin, begin + len(mine)))
            all_bags.append(bags)
        return self._asked_for(batch, tuple(spans), tuple(all_bags), keys)

    def prepare_all(self, whole: Batch, batches: Sequence[Batch]) -> Sequence[_Asked]:
        """Return the same of each of several batches, whose keys are found in one pass."""
        found = [look_up.asked(whole) for look_up in self._look_ups]
        if not whole.num_samples or any(bags is not None for _, bags in found):
            return [self.prepare(batch) for batch in batches]
        asked, first = [], 0
        for batch in batches:
            last = first + batch.num_samples
            keys: list[list[NDArray[np.int64]]] = [[] for _ in self._tables]
            spans = []
            for look_up, (all_keys, _) in zip(self._look_ups, found, strict=True):
                each = len(all_keys) // whole.num_samples
                begin = sum(map(len, keys[look_up.table]))
                keys[look_up.table].append(all_keys[first * each : last * each])
                spans.append(slice(begin, begin + batch.num_samples * each))
            asked.append(self._asked_for(batch, tuple(spans), (None,) * len(spans), keys))
            first = last
        return asked

    def _asked_for(
        self,
        batch: Batch,
        spans: tuple[slice, ...],
        bags: tuple[Tensor | None, ...],
        keys: Sequence[Sequence[NDArray[np.int64]]],
    ) -> _Asked:
        """Return what a batch looks up, given the keys of each table's look-ups, and what the layers read of it."""
        read = [*self._read(batch).values(), *(each for each in bags if each is not None)]
        joined = tuple(each[0] if len(each) == 1 else np.concatenate(each) for each in keys)
        return _Asked(spans, bags, joined, tuple(map(_as_array, read)))

    def announce(self, prepared: _Asked) -> None:
        """Have the rows of a batch brought to the device, and the rest with those of the first table."""
        for number, (table, keys) in enumerate(zip(self._tables, prepared.keys, strict=True)):
            table.announce(keys, *(() if number else prepared.arrays))
        self._asked.append(replace(prepared, keys=(), arrays=()))

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Compute the next batch announced and step its rows."""
        asked = self._asked.popleft()
        taken = self._captured.take()
        for table in self._tables:
            table.stepper.begin_step(step, factor)
        inputs = taken[0][0].staged_arrays
        may_be_captured = batch.num_samples >= 2  # one sample is normalised otherwise
        size = (*((span.start, span.stop) for span in asked.spans), inputs.layout, scale)

        def launch(places: Sequence[BatchPlaces], unique: Sequence[Tensor], inputs: Sequence[Tensor]) -> _Outcome:
            bags = iter(inputs[len(self._read(batch)) :])
            there = replace(asked, bags=tuple(None if here is None else next(bags) for here in asked.bags))
            return self._launch(there, self._there(batch, inputs), places, unique, scale)

        outcome = self._captured.run(size if may_be_captured else None, [place for _, place in taken], inputs, launch)
        for table, (prefetched, place), stepped in zip(self._tables, taken, outcome.stepped, strict=True):
            if stepped:
                table.stepped(prefetched, place)
            else:
                table.done_with(prefetched)
        return outcome.loss, outcome.scores

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        """Return what the layers read of a batch, less what it does not have."""
        return {name: tensor for name in self._fields if (tensor := getattr(batch, name)) is not None}

    def _there(self, batch: Batch, inputs: Sequence[Tensor]) -> Batch:
        """Return a batch with what the layers read of it on the device; the rest is nobody's."""
        read = {
            name: there.view(here.dtype).view(here.shape)
            for (name, here), there in zip(self._read(batch).items(), inputs, strict=False)  # bags come behind
        }
        extra = {name: read.pop(name, tensor) for name, tensor in batch.extra.items()}
        return replace(batch, **read, extra=extra)

    def _launch(
        self, asked: _Asked, batch: Batch, places: Sequence[BatchPlaces], unique: Sequence[Tensor], scale: float
    ) -> _Outcome:
        """Launch a step; of `unique`, those beyond the number in `places` are no rows."""
        rows = zip(self._tables, places, unique, strict=True)
        values = [table.gather(place, mine).requires_grad_() for table, place, mine in rows]
        self._now = (asked, values, batch.num_samples)
        with self._model.computing():
            loss, scores = self._model.outcome(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        for table, place, mine, of in zip(self._tables, places, unique, values, strict=True):
            if of.grad is not None:
                table.stepper.step(mine, place, place.order, (of.grad * scale).contiguous())
        stepped = tuple(of.grad is not None for of in values)
        return _Outcome(loss.detach(), scores.detach() if isinstance(scores, Tensor) else scores, stepped)

    def _values_of(self, number: int) -> Callable[[], tuple[Tensor, Tensor | None, int]]:
        """Return what gives a look-up its vectors, bags and number of samples while a step is launched."""

        def values() -> tuple[Tensor, Tensor | None, int]:
            if self._now is None:
                raise RuntimeError("rows are looked up outside of a step")
            asked, of_tables, num_samples = self._now
            return of_tables[self._look_ups[number].table][asked.spans[number]], asked.bags[number], num_samples

        return values


def _rounded_up(keys: NDArray[np.int64], begins: Tensor) -> tuple[NDArray[np.int64], Tensor]:
    """Return keys with some more behind, in a bag that nobody reads: few sizes, each of which is captured once.

    They are the first key again, whose row is looked up anyway, and their gradients are zeros.
    """
    unit = 1 << max(0, len(keys).bit_length() - SIZE_BITS)
    size = -(-len(keys) // unit) * unit
    more = np.full(size - len(keys), keys[0] if len(keys) else 0, dtype=np.int64)
    return np.concatenate([keys, more]), torch.cat([begins, begins.new_full((1,), size)])


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as numbers that NumPy knows, bit by bit."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
