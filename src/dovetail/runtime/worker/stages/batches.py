"""Micro-batches at a later stage: what has come of each, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dovetail.runtime.messages import Forward
from dovetail.runtime.model.stages import Cut
from dovetail.runtime.worker.rows.batch_rows import Leaf
from dovetail.runtime.worker.stages.requests import StageRequest
from dovetail.transport import Envelope

FlightKey = tuple[str, int]
TaskKey = tuple[int, int, str]
"""Step, task, and which process of the first stage it belongs to."""
Wanted = Callable[[], bool]


@dataclass(slots=True, eq=False)
class StageBatch:
    """One micro-batch."""

    message: Forward
    """The first that came of it."""
    envelopes: dict[int, Envelope] = field(default_factory=dict)
    """By the stage that sent it: each is answered with the gradients of what it brought."""
    fields: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    requests: dict[int, StageRequest] = field(default_factory=dict)
    """By later stage; there once the forward pass is done."""
    scores: Any = None
    loss: Tensor | None = None
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    """Of its inputs, once the backward pass is done."""
    stages_s: tuple[float, ...] = ()
    """How long each stage computed for it, as far as is known here."""

    @property
    def task(self) -> TaskKey:
        """Whose gradients it adds to."""
        return task_of(self.message)

    def is_like(self, other: StageBatch) -> bool:
        """Say whether two can be computed as one: all in them is of one entry a sample, and of the same kinds."""
        return self._shapes() == other._shapes() is not None

    def _shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Return the shape of a sample's entry in everything that came; None where entries are not of samples."""
        tensors = self.fields | self.inputs
        if any(not each.dim() or each.shape[0] != self.message.samples for each in tensors.values()):
            return None
        return {name: tuple(each.shape[1:]) for name, each in tensors.items()}

    def took(self, stages_s: tuple[float, ...]) -> None:
        """Add what stages computed for it."""
        self.stages_s = tuple(a + b for a, b in zip_longest(self.stages_s, stages_s, fillvalue=0.0))


def concatenated(batches: Sequence[StageBatch]) -> StageBatch:
    """Return several that are alike as one, of all their samples in turn."""
    if len(batches) == 1:
        return batches[0]
    whole = StageBatch(batches[0].message)
    for name in batches[0].fields:
        whole.fields[name] = torch.cat([batch.fields[name] for batch in batches])
    for name, first in batches[0].inputs.items():
        tensor = torch.cat([batch.inputs[name].detach() for batch in batches])
        whole.inputs[name] = tensor.requires_grad_(first.requires_grad)
    return whole


def task_of(message: Forward) -> TaskKey:
    """Return the task that a micro-batch belongs to."""
    return message.step, message.task, message.head


class StageBatches:
    """All that are here, in the order in which they came."""

    def __init__(self, cut: Cut) -> None:
        """Start with none."""
        self._cut = cut
        self._batches: dict[FlightKey, StageBatch] = {}

    def add(self, envelope: Envelope) -> StageBatch:
        """Take in what came from one of the stages before."""
        message: Forward = envelope.message
        batch = self._batches.setdefault((message.head, message.flight), StageBatch(message))
        batch.envelopes[message.sender] = envelope
        return batch

    def ready(self, may_begin: Callable[[Forward], bool]) -> StageBatch | None:
        """Return what to compute next: backward passes first, which free memory; None where nothing can be."""
        for batch in self._batches.values():
            if batch.requests and all(request.envelope is not None for request in batch.requests.values()):
                return batch
        for batch in self._batches.values():
            if not batch.requests and batch.envelopes.keys() == self._cut.senders and may_begin(batch.message):
                return batch
        return None

    def ready_with(
        self, first: StageBatch, may_begin: Callable[[Forward], bool], most_samples: int
    ) -> list[StageBatch]:
        """Return a batch that is ready, and others of its step that are, to be computed at once with it."""
        found, samples = [first], first.message.samples
        for batch in self._batches.values():
            message = batch.message
            is_ready = batch.envelopes.keys() == self._cut.senders and may_begin(message) and batch is not first
            fits = message.step == first.message.step and samples + message.samples <= most_samples
            if is_ready and fits and batch.is_like(first):
                found.append(batch)
                samples += message.samples
        return found

    @property
    def has_out(self) -> bool:
        """Say whether any is with later stages: forward here, and not back yet."""
        return any(batch.requests for batch in self._batches.values())

    def remove(self, batch: StageBatch) -> None:
        """Forget one that is done."""
        del self._batches[batch.message.head, batch.message.flight]

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()
