"""The dense parameters of a later stage: fetched from servers for each step, or kept by its workers in a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from dovetail.runtime.messages import Forward
from dovetail.runtime.model.stages import Cut
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.ring import RingSync
from dovetail.runtime.worker.links.servers import ServerConnections
from dovetail.runtime.worker.stages.batches import TaskKey, Wanted, task_of


class StageDense(Protocol):
    """What computing at a stage asks of them; the main thread's. Whoever need not do a thing leaves it out."""

    def are_there(self, message: Forward) -> bool:
        """Say whether a micro-batch can be computed: its step's parameters are here, or can be fetched."""
        ...

    def begin_generation(self) -> None:
        """Throw away what is under way."""
        ...

    def prepare(self, message: Forward, wanted: Wanted) -> None:
        """Have the parameters be those that a micro-batch is computed with."""
        return

    def add_up(self, task: TaskKey) -> None:
        """Have the gradients of the backward pass that follows count for a task."""
        return

    def take_sum(self, task: TaskKey) -> Tensor | None:
        """Return the gradients of a task, and forget them; None where there are none, or nobody asks for them."""
        return None


class StageRing(StageDense):
    """The stage's workers keep them, and add up those of a whole step: there is nothing to fetch or to hand out."""

    def __init__(self, ring: RingSync, model: ServedModel) -> None:
        """Keep this worker's place in the ring."""
        self._ring, self._model = ring, model

    def are_there(self, message: Forward) -> bool:
        """Say whether this worker is in the ring, and the step before has been applied here too."""
        return self._ring.has_step(message.generation, message.step)

    def begin_generation(self) -> None:
        """Forget what was added up."""
        self._model.gradients.zero_()


class TaskSums(StageDense):
    """Servers keep them: fetched with the first micro-batch of a step, and gradients added up task by task.

    Without steps (ssp and async), they are fetched for every task.
    """

    def __init__(
        self,
        model: ServedModel,
        cut: Cut,
        connections: ServerConnections,
        *,
        sync: bool,
        has_out: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep the connections to the servers; `has_out` says whether micro-batches are between their two passes."""
        self._model, self._cut, self._connections, self._sync, self._has_out = model, cut, connections, sync, has_out
        self._fetched_for: int | TaskKey | None = None
        self._sums: dict[TaskKey, Tensor] = {}
        """Gradients of tasks under way, but for the one whose sum is in the model."""
        self._summed: TaskKey | None = None
        """The task whose gradients add up in the model."""

    def are_there(self, message: Forward) -> bool:
        """Say that they can be fetched: not while others are to go back with those that they went forward with."""
        return self._use_of(message) == self._fetched_for or not self._has_out()

    def _use_of(self, message: Forward) -> int | TaskKey:
        """Return what a fetch serves: a step, or a task where there are none."""
        return message.step if self._sync else task_of(message)

    def prepare(self, message: Forward, wanted: Wanted) -> None:
        """Fetch them, where those of another step are here."""
        use = self._use_of(message)
        if use == self._fetched_for or not len(self._model.values):
            return
        version = message.step if self._sync else 0
        answer = self._connections.pull(message.generation, version, [], dense=True, wanted=wanted)
        if answer.dense is not None:
            self._model.values.copy_(torch.from_numpy(answer.dense[self._cut.dense]))
        self._fetched_for = use

    def add_up(self, task: TaskKey) -> None:
        """Have the model's gradients be those of a task: what was in it goes to the sums."""
        if task == self._summed:
            return
        self._put_aside()
        # A worker of the first stage has one task at a time: nobody asks for what it did of others any more.
        self._sums = {other: total for other, total in self._sums.items() if other[2] != task[2] or other == task}
        if task in self._sums:
            self._model.gradients.copy_(self._sums.pop(task))
        self._summed = task

    def take_sum(self, task: TaskKey) -> Tensor | None:
        """Return the gradients of a task, and forget them."""
        self._put_aside()
        return self._sums.pop(task, None)

    def _put_aside(self) -> None:
        """Have the model's gradients be those of no task."""
        if self._summed is not None:
            self._sums[self._summed] = self._model.gradients.clone()
            self._model.gradients.zero_()
            self._summed = None

    def begin_generation(self) -> None:
        """Throw away what is under way."""
        self._sums.clear()
        self._summed = self._fetched_for = None
        self._model.gradients.zero_()
