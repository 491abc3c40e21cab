"""How the dense parameters of all workers stay the same: through the servers, or by a ring (`ring_sync`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dovetail.runtime.messages import Message, Span
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.pinned_memory import to_host
from dovetail.runtime.worker.tasks.task import Floats, Task


class DenseSync(Protocol):
    """A worker's side; all but `handle` and `reset` is the main thread's. Whoever need not do a thing leaves it out."""

    is_fetched: bool = False
    """Whether the dense parameters are fetched from servers, with the first micro-batch of a task."""

    def reset(self, generation: int) -> None:
        """Throw away what is under way, in the control thread: the run goes on as `generation`."""
        return

    def handle(self, message: Message) -> bool:
        """Do what the coordinator says, in the control thread; False where a message is about something else."""
        return False

    def catch_up(self, is_current: Callable[[int], bool]) -> None:
        """Between tasks: take one's place for a generation that `is_current`, where the coordinator has called."""
        return

    def begin_task(self) -> None:
        """Count gradients from zero: whatever an abandoned task left behind goes."""
        return

    def begin_last(self, task: Task | None = None) -> None:
        """Say that the backward pass that follows is the last of a task."""
        return

    def gradients_to_push(self) -> Floats | None:
        """Return the dense gradients of a whole task for the servers, and count from zero again; None: not theirs."""
        return None

    def close(self) -> None:
        """Let go of what is open, when the worker ends."""
        return

    def finish(self, task: Task, wanted: Callable[[], bool]) -> Span | None:
        """After a task's last gradients were passed on: wait until all workers agree; return that wait."""
        return None


class ServerSync(DenseSync):
    """Servers keep the dense parameters: fetched with every task, their gradients pushed with its last ones."""

    def __init__(self, model: ServedModel) -> None:
        """Take the gradients from a model."""
        self._gradients = model.gradients
        self.is_fetched = len(model.gradients) > 0

    def begin_task(self) -> None:
        """Count gradients from zero."""
        self._gradients.zero_()

    def gradients_to_push(self) -> Floats | None:
        """Return the dense gradients, where there are any."""
        if not self.is_fetched:
            return None
        (gradients,) = to_host([self._gradients])
        if not self._gradients.is_cuda:
            gradients = gradients.copy()
        self._gradients.zero_()
        return gradients
