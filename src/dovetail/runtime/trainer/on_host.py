"""Rows in this process's own memory, over disk: no message, and no other process."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.batch import Batch
from dovetail.embedding import Table, Whereabouts
from dovetail.models.embedding import SlotEmbedding
from dovetail.runtime.folder import TableSummary, rows_of
from dovetail.runtime.noise import noise_key
from dovetail.runtime.server.shard import load_tables
from dovetail.runtime.trainer.host_rows import (
    NO_KEYS,
    AskedLookUp,
    DistinctKeys,
    HostRows,
    Keys,
    PreparedStep,
    numbered_apart,
)
from dovetail.runtime.trainer.steps import Beginning, Strategy
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.compute.per_sample.clipped import ClippedGradients
from dovetail.runtime.worker.compute.per_sample.rows import SampleRows
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.rows.keys import LookUp, look_up
from dovetail.runtime.worker.rows.prefetch import PrefetchableLookUp, prefetchable_look_ups
from dovetail.runtime.worker.tasks.task import RowGradients


def rows_on_host(begin: Beginning) -> Strategy:
    """Return tables in host memory and on disk, and the steps of a model over them."""
    blueprint, run = begin.blueprint, begin.blueprint.run
    tables = load_tables(
        blueprint,
        begin.manifest,
        begin.checkpoint,
        cold=rows_of(begin.folder, blueprint.servers[0].name),
        server=0,
        threads=1,
        noise_key=noise_key(begin.folder, blueprint),
    )
    is_half = run.workers[0].precision == "float16" or any(
        each.dtype == torch.float16 for each in begin.built.parameters()
    )
    has_limits = any(table.max_norm is not None for table in blueprint.tables)
    rows = None if is_half or has_limits or begin.device.type != "cpu" else HostRows(tables)
    look_ups = prefetchable_look_ups(begin.built)
    private = blueprint.private
    if private is not None:
        rows = None
    model = ServedModel(
        begin.built,
        rows or (BatchRows(1, begin.device) if private is None else SampleRows(1)),
        begin.device,
        schema=begin.schema,
        precision=run.workers[0].precision,
        compiles=run.training.compile and can_compile(begin.device, warnings.warn),
    )
    parts = run.training.accumulate
    if private is not None:
        clipped = ClippedGradients(model, private.clip, begin.tell)
        return Strategy(model, FetchedSteps(model, tables, parts=parts, clipped=clipped), tables, summary_of)
    if rows is None:
        return Strategy(model, FetchedSteps(model, tables, parts=parts), tables, summary_of)
    known = [] if isinstance(look_ups, str) or model.compiles else look_ups
    return Strategy(model, HostSteps(model, rows, tables, known, parts=parts), tables, summary_of)


class HostSteps:
    """Steps on a CPU, whose layers read rows where they lie."""

    def __init__(
        self,
        model: ServedModel,
        rows: HostRows,
        tables: Sequence[Table],
        known: Sequence[PrefetchableLookUp],
        *,
        parts: int,
    ) -> None:
        """Compute each batch in so many parts; layers of `known` look-ups are told what theirs give."""
        self._model, self._rows, self._tables, self._known, self._parts = model, rows, tables, known, parts
        self._prepared: deque[PreparedStep] = deque()
        self.waited_s = 0.0
        """How long look-ups have waited for rows."""
        for number, each in enumerate(known):
            each.layer.forward = MethodType(_known_forward(rows, number), each.layer)  # type: ignore[method-assign]

    def prepare(self, batch: Batch) -> PreparedStep:
        """Return what a batch looks up, every key once, and where the rows are."""
        distinct = DistinctKeys(len(self._tables))
        parts = tuple((part, self._asked(part, distinct)) for part in _parts(batch, self._parts))
        keys = distinct.numbered()
        return PreparedStep(parts, keys, tuple(map(_found_ahead, self._tables, keys)))

    def prepare_all(self, whole: Batch, batches: Sequence[Batch]) -> list[PreparedStep]:
        """Return the same for batches that make up a whole, for all at once where every sample has as many keys."""
        together = [] if self._parts > 1 else self._asked_together(whole)
        if not together:
            return [self.prepare(batch) for batch in batches]
        by_table = {
            table: numbered_apart(
                table,
                self._tables[table],
                keys,
                [len(keys) // whole.num_samples * batch.num_samples for batch in batches],
            )
            for table, keys in together
        }
        steps = []
        for place, batch in enumerate(batches):
            keys, asked = [NO_KEYS] * len(self._tables), []
            where: list[Whereabouts | None] = [None] * len(self._tables)
            for table, _ in together:
                each, keys[table], where[table] = by_table[table][place]
                asked.append(each)
            steps.append(PreparedStep(((batch, asked),), tuple(keys), tuple(where)))
        return steps

    def _asked_together(self, whole: Batch) -> list[tuple[int, Keys]]:
        """Return what several batches look up, where that is one look-up a table of as many keys a sample."""
        if self._known:
            found = [(each.table, *each.asked(whole)) for each in self._known]
            if any(bags is not None for _, _, bags in found):
                return []
            asked = [(table, keys) for table, keys, _ in found]
        else:
            asked = self._model.asked(whole)
        tables = {table for table, _ in asked}
        is_even = all(len(keys) and not len(keys) % whole.num_samples for _, keys in asked)
        return asked if is_even and len(tables) == len(asked) else []

    def _asked(self, part: Batch, distinct: DistinctKeys) -> list[AskedLookUp]:
        """Return the look-ups of a part that it alone decides."""
        if not self._known:
            return [distinct.add(table, keys) for table, keys in self._model.asked(part)]
        found = []
        for each in self._known:
            keys, offsets = each.asked(part)
            asked = distinct.add(each.table, keys)
            asked.offsets = None if offsets is None else np.ascontiguousarray(offsets.numpy())
            found.append(asked)
        return found

    def announce(self, prepared: PreparedStep) -> None:
        """Keep what was prepared."""
        self._prepared.append(prepared)

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Compute the parts of the next batch announced, and step its rows."""
        prepared = self._prepared.popleft()
        if not self._known and self._tables and not any(map(len, prepared.keys)):
            prepared = self.prepare(batch)  # the model's look-ups are known since: it has run
        begun_s = time.perf_counter()
        self._rows.begin(prepared)
        self.waited_s += time.perf_counter() - begun_s
        total, all_scores = None, []
        for part, asked in prepared.parts:
            self._rows.begin_part(asked)
            with self._model.computing():
                loss, scores = self._model.outcome(part)
            loss.backward()  # type: ignore[no-untyped-call]
            all_scores.append(scores)
            total = loss.detach() if total is None else total + loss.detach()
        self._rows.step(step, scale=scale, factor=factor)
        return torch.zeros(()) if total is None else total, _joined(all_scores)


def _known_forward(rows: HostRows, number: int) -> Any:
    """Return the forward pass of a layer whose look-up has a number."""

    def forward(layer: SlotEmbedding, *_: Tensor) -> Tensor:
        found = rows.known(number, mean=layer.mode == "mean")
        return found.view(-1, (layer.last_slot - layer.first_slot) * layer.width)

    return forward


def _found_ahead(table: Table, keys: Keys) -> Whereabouts | None:
    """Return where the rows of keys lie; those that are on disk are brought up meanwhile."""
    if not len(keys):
        return None
    where = table.find(keys)
    if where.slots.min() >= 0:
        return where
    if table.has_rows_on_disk:
        table.prefetch(keys)
    return None


class FetchedSteps:
    """Steps whose rows are copied to where the layers are, and their gradients back.

    On other devices, in float16, and where gradients of single samples are wanted.
    """

    def __init__(
        self, model: ServedModel, tables: Sequence[Table], *, parts: int, clipped: ClippedGradients | None = None
    ) -> None:
        """Compute each batch in so many parts, one after the other; a private run has gradients `clipped`."""
        self._model, self._tables, self._parts = model, tables, parts
        self._computer = Computer(model, clipped)
        self._asked: deque[list[tuple[Batch, list[LookUp]]]] = deque()
        self._where: dict[int, Whereabouts | None] = {}
        self.waited_s = 0.0
        """How long look-ups have waited for rows."""

    def prepare(self, batch: Batch) -> list[tuple[Batch, list[LookUp]]]:
        """Return the parts of a batch, each with the look-ups of it that are known, every key once."""
        return [
            (part, [look_up(table, keys, 1) for table, keys in self._model.asked(part)])
            for part in _parts(batch, self._parts)
        ]

    def announce(self, prepared: list[tuple[Batch, list[LookUp]]]) -> None:
        """Keep what was prepared."""
        self._asked.append(prepared)

    def compute(self, batch: Batch, *, step: int, scale: float, factor: float) -> tuple[Tensor, Any]:
        """Compute the parts of the next batch announced and step its rows."""
        gradients: RowGradients = []
        total, all_scores = 0.0, []
        self._where = {}
        for part, look_ups in self._asked.popleft():
            ahead = [(wanted, self._fetch(wanted)) for wanted in look_ups]
            done = self._computer.compute(part, ahead, self._fetch, where="in this step")
            gradients += done.rows
            total += done.loss
            all_scores.append(done.scores)
        self._step(gradients, step=step, scale=scale, factor=factor)
        return torch.tensor(total), _joined(all_scores)

    def _fetch(self, wanted: LookUp) -> Any:
        begun_s = time.perf_counter()
        values, where = self._tables[wanted.table].lookup_distinct(wanted.keys)
        self._where[id(wanted)] = where
        self.waited_s += time.perf_counter() - begun_s
        return values

    def _step(self, gradients: RowGradients, *, step: int, scale: float, factor: float) -> None:
        """Step the rows of every table once."""
        for number, table in enumerate(self._tables):
            mine = [(wanted, gradient) for wanted, gradient in gradients if wanted.table == number]
            table.begin_step(step, factor=factor)
            if len(mine) == 1:
                wanted, gradient = mine[0]
                table.update_distinct(wanted.keys, gradient, scale=scale, where=self._where.get(id(wanted)))
            elif mine:
                keys = np.concatenate([wanted.keys for wanted, _ in mine])
                summed = np.concatenate([np.asarray(gradient) for _, gradient in mine])
                table.update(keys, summed * np.float32(scale))
            table.has_had(step)


def _joined(scores: Sequence[Any]) -> Any:
    """Return the answers of the parts of a batch as one; None where they are not one tensor each."""
    if len(scores) == 1:
        return scores[0]
    tensors = [each.detach() for each in scores if isinstance(each, Tensor)]
    return torch.cat(tensors) if tensors and len(tensors) == len(scores) else None


def _parts(batch: Batch, count: int) -> list[Batch]:
    """Return a batch in so many parts of one size, but for the last."""
    if count == 1:
        return [batch]
    size = -(-batch.num_samples // count) or 1
    return [batch.slice(first, min(first + size, batch.num_samples)) for first in range(0, batch.num_samples, size)]


def summary_of(table: Table) -> TableSummary:
    """Return where a table's rows are."""
    stats = table.stats()
    return TableSummary(
        device_rows=0,
        host_rows=stats.host_rows,
        disk_rows=stats.disk_rows,
        hit_ratio=round(1.0 - stats.miss_ratio, 4),
        lifted=stats.num_fetched,
        lowered=stats.num_evicted,
    )
