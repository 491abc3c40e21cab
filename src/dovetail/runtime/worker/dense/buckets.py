"""Dense parameters in buckets: a layer runs once its own have come, gradients go as the backward pass has them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.dense.buckets import Bucket
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.sync import DenseSync, ServerSync
from dovetail.runtime.worker.links.servers import Abandoned, ServerConnections
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.tasks.task import ArrivingBuckets, Floats, Task

DenseFloats = NDArray[np.float32]
LOOK_S = 0.05
"""How often who waits for a slice looks whether it should still wait."""


class BucketPull:
    """Gets the slices of one task after the other; `run` is the thread."""

    def __init__(
        self,
        slices: Sequence[Bucket],
        lines: ServerConnections | None,
        wanted: Callable[[Task], bool],
        rests: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the lines, which `run` closes; none where there are no slices, and nothing is to be done.

        `rests` is called when there is nothing to do.
        """
        self._slices, self._lines, self._wanted, self._rests = slices, lines, wanted, rests
        of_servers = [
            [number for number, each in enumerate(slices) if each.server == server]
            for server in sorted({each.server for each in slices})
        ]
        self._rounds = [[number for number in each if number is not None] for each in zip_longest(*of_servers)]
        """Slices that are asked for together, one of each server."""
        self._size = max((each.last for each in slices), default=0)
        self._queue: queue.SimpleQueue[tuple[Task, ArrivingBuckets] | None] = queue.SimpleQueue()

    def ask(self, task: Task) -> ArrivingBuckets | None:
        """Have the dense parameters of a task fetched; None where they do not come in slices."""
        if self._lines is None:
            return None
        arriving = ArrivingBuckets(self._lines.memory.floats(self._size), [threading.Event() for _ in self._slices])
        self._queue.put((task, arriving))
        return arriving

    def stop(self) -> None:
        """End the thread."""
        self._queue.put(None)

    def run(self) -> None:
        """Fetch until told to stop; what is not wanted any more nobody waits for."""
        try:
            while (asked := self._queue.get()) is not None:
                with suppress(Abandoned):
                    self._fetch(*asked)
                self._rests()
        finally:
            if self._lines is not None:
                self._lines.close()

    def _fetch(self, task: Task, arriving: ArrivingBuckets) -> None:
        """Fetch the slices of a task."""
        lines = self._lines
        for numbers in self._rounds if lines is not None else ():
            pieces = [self._slices[number] for number in numbers]
            lines.pull_slices(task.assign, pieces, arriving.vector, lambda: self._wanted(task))  # type: ignore[union-attr]
            for number in numbers:
                arriving.came[number].set()


class LayerBarrier:
    """Has layers wait for the slices of their parameters; the main thread's."""

    def __init__(self, model: ServedModel, slices: Sequence[Bucket]) -> None:
        """Watch the layers of a model; where it is compiled, or computes with copies, it waits for all at once."""
        self._values, self._slices = model.values, slices
        self._arriving: ArrivingBuckets | None = None
        self._kept: ArrivingBuckets | None = None
        """The last one, which a device may still copy from."""
        self._wanted: Callable[[], bool] = lambda: True
        self._left: set[int] = set()
        self._waited_s = 0.0
        is_plain = all(parameter.dtype == torch.float32 for parameter in model.dense)
        self._waits_for_all = not (isinstance(model.graph, LayerGraph) and is_plain and not model.compiles)
        if slices and not self._waits_for_all:
            self._watch(model)

    def _watch(self, model: ServedModel) -> None:
        """Have each layer wait for what it needs; what no layer has, the first waits for."""
        places, offset = {}, 0
        for parameter in model.dense:
            places[id(parameter)] = (offset, offset + parameter.numel())
            offset += parameter.numel()
        modules = [block.module for block in model.graph.blocks]  # type: ignore[union-attr]
        needs = [self._overlapping(places.get(id(each)) for each in module.parameters()) for module in modules]
        needs[0] |= set(range(len(self._slices))) - set().union(*needs)
        for module, numbers in zip(modules, needs, strict=True):
            module.register_forward_pre_hook(self._before(numbers))

    def _overlapping(self, places: Any) -> set[int]:
        """Return the slices that have any of some stretches of the vector."""
        wanted = [place for place in places if place is not None]
        return {
            number
            for number, each in enumerate(self._slices)
            if any(each.first < last and each.last > first for first, last in wanted)
        }

    def _before(self, numbers: set[int]) -> Callable[[nn.Module, Any], None]:
        """Return what a layer does first."""
        return lambda _module, _arguments: self._take(numbers)

    def begin(self, arriving: ArrivingBuckets | None, wanted: Callable[[], bool]) -> None:
        """Begin a task with parameters that are on their way, where they are."""
        if arriving is None:
            return
        self._arriving, self._wanted, self._waited_s = arriving, wanted, 0.0
        self._left = set(range(len(self._slices)))
        if self._waits_for_all:
            self._take(self._left)

    def end(self) -> float:
        """Take all that no layer has waited for; return how long was waited in all."""
        self._take(self._left)
        self._kept = self._arriving or self._kept
        self._arriving, waited_s, self._waited_s = None, self._waited_s, 0.0
        return waited_s

    def _take(self, numbers: set[int]) -> None:
        """Wait for slices, and put them where the model has them."""
        if self._arriving is None:
            return
        begun_s = time.perf_counter()
        for number in sorted(numbers & self._left):
            while not self._arriving.came[number].wait(LOOK_S):
                if not self._wanted():
                    raise Abandoned
            part = slice(self._slices[number].first, self._slices[number].last)
            self._values[part].copy_(torch.from_numpy(self._arriving.vector[part]), non_blocking=True)
            self._left.discard(number)
        self._waited_s += time.perf_counter() - begun_s


SENT_LOOK_S = 0.1
"""How often it is seen whether what is waited for is still wanted."""


class BucketPush(ServerSync):
    """Servers keep the dense parameters, and get their gradients slice by slice."""

    def __init__(self, model: ServedModel, slices: Sequence[Bucket], sender: Sender) -> None:
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
            if self._under_way.acquire(timeout=SENT_LOOK_S):
                self._num_under_way -= 1
            elif not self._sender.is_at_work:
                break
        self._gradients.zero_()


def through_servers(model: ServedModel, slices: Sequence[Bucket], sender: Sender) -> DenseSync:
    """Return how a worker's dense gradients get to servers: in slices where there are any, and that is possible."""
    can_be = slices and model.device.type == "cpu" and model.loss_scale is None
    return BucketPush(model, slices, sender) if can_be else ServerSync(model)
