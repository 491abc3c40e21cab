"""Dense gradients on their way to servers while the backward pass goes on: each slice as soon as it is whole.

The hooks of parameters run in whatever thread autograd uses; a slice is final when those of all its parameters have
run. Slices that are not whole when the pass is over (a parameter took no part in it) go then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from dovetail.runtime.dense.slices import DenseSlice
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.dense_sync import DenseSync, ServerSync
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.task import Floats, Task

LOOK_S = 0.1
"""How often it is seen whether what is waited for is still wanted."""


class SlicedPush(ServerSync):
    """Servers keep the dense parameters, and get their gradients slice by slice."""

    def __init__(self, model: ServedModel, slices: Sequence[DenseSlice], sender: Sender) -> None:
        """Watch the gradients of a model whose vectors are in host memory."""
        super().__init__(model)
        self._slices, self._sender = slices, sender
        self._task: Task | None = None
        """The one whose last backward pass is under way."""
        self._are_sent = False
        """Whether the vector has gradients that are sent."""
        self._left = [0] * len(slices)
        """Parameters of each slice whose gradients are not final."""
        self._sent: set[int] = set()
        self._lock = threading.Lock()
        self._under_way = threading.Semaphore(0)
        self._num_under_way = 0
        self._of_parameter: list[list[int]] = []
        offset = 0
        for parameter in model.dense:
            first, offset = offset, offset + parameter.numel()
            mine = [number for number, each in enumerate(slices) if each.first < offset and each.last > first]
            parameter.register_post_accumulate_grad_hook(self._on_gradient(len(self._of_parameter)))  # type: ignore[no-untyped-call]
            self._of_parameter.append(mine)

    def _on_gradient(self, position: int) -> Callable[[Tensor], None]:
        """Return the hook of a parameter."""

        def on_gradient(_: Tensor) -> None:
            with self._lock:
                for number in self._of_parameter[position] if self._task is not None else ():
                    if number in self._sent:
                        raise TrainingError(
                            "a parameter gets gradients twice in one backward pass, after it was sent to its server",
                            hint="set training.slice_bytes = 0",
                        )
                    self._left[number] -= 1
                    if not self._left[number]:
                        self._send(number)

        return on_gradient

    def _send(self, number: int) -> None:
        """Have a slice sent; its numbers stay as they are until it is."""
        task, each = self._task, self._slices[number]
        if task is None:
            return
        self._sent.add(number)
        self._num_under_way += 1
        numbers: Floats = self._gradients[each.first : each.last].numpy()
        self._sender.put_slice(task, each, numbers, self._under_way.release)

    def begin_last(self, task: Task | None = None) -> None:
        """Say that the backward pass that follows is the last of a task."""
        with self._lock:
            self._task, self._sent = task, set()
            self._left = [0] * len(self._slices)
            for mine in self._of_parameter:
                for number in mine:
                    self._left[number] += 1

    def gradients_to_push(self) -> Floats | None:
        """Have the slices sent that are left; where nobody watched the last pass, return all gradients."""
        with self._lock:
            if self._task is not None:
                for number in range(len(self._slices)):
                    if number not in self._sent:
                        self._send(number)
                self._task, self._are_sent = None, True
                return None
        if self._are_sent:  # they are of the task before: this one has none
            self.begin_task()
        return super().gradients_to_push()

    def begin_task(self) -> None:
        """Count from zero again, once everything is sent of the task before."""
        with self._lock:
            self._task, self._are_sent = None, False
        while self._num_under_way:
            # Whoever sends says so of each slice, be it wanted or not.
            if self._under_way.acquire(timeout=LOOK_S):
                self._num_under_way -= 1
            elif not self._sender.is_at_work:
                break
        self._gradients.zero_()


def through_servers(model: ServedModel, slices: Sequence[DenseSlice], sender: Sender) -> DenseSync:
    """Return how a worker's dense gradients get to servers: in slices where there are any, and that is possible."""
    can_be = slices and model.device.type == "cpu" and model.loss_scale is None
    return SlicedPush(model, slices, sender) if can_be else ServerSync(model)
