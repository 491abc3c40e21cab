"""How the dense parameters of all workers stay the same: through the servers, or by a ring (`ring`).

Through servers they come with the rows of a task's first micro-batch, and gradients go with its last ones. Where they
are large (`runtime.dense.buckets` says when) both go in buckets:

* A thread asks servers for bucket after bucket, in the order of the layers; a server answers as soon as it has applied
  a step to one. Before a layer runs, the main thread waits for the buckets of its parameters.
* A bucket of gradients is sent while the backward pass goes on, as soon as it is whole. The hooks of parameters run in
  whatever thread autograd uses; a bucket is final when those of all its parameters have run. Buckets that are not whole
  when the pass is over (a parameter took no part in it) go then.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.dense.buckets import Bucket, buckets_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Message, Span
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.servers import Abandoned, ServerConnections, connect_to_servers
from dovetail.runtime.worker.rows.pinned_memory import PinnedMemory, to_host
from dovetail.runtime.worker.send import Sender
from dovetail.runtime.worker.tasks.task import ArrivingBuckets, Floats, Task

LOOK_S = 0.05
"""How often who waits for a bucket looks whether it should still wait."""
SENT_LOOK_S = 0.1
"""How often it is seen whether the thread that sends is still there."""


class BucketPull:
    """Gets the buckets of one task after the other (`run` is the thread), and has layers wait for theirs."""

    def __init__(
        self,
        model: ServedModel,
        buckets: Sequence[Bucket],
        connections: ServerConnections,
        wanted: Callable[[Task], bool],
        rests: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the connections, which `run` closes, and watch the layers of a model.

        A model that is compiled, or computes with copies, waits for all at once. `rests` is called when there is
        nothing to do.
        """
        self._buckets, self._connections, self._wanted, self._rests = buckets, connections, wanted, rests
        of_servers = [
            [number for number, each in enumerate(buckets) if each.server == server]
            for server in sorted({each.server for each in buckets})
        ]
        self._rounds = [[number for number in each if number is not None] for each in zip_longest(*of_servers)]
        """Buckets that are asked for together, one of each server."""
        self._queue: queue.SimpleQueue[tuple[Task, ArrivingBuckets] | None] = queue.SimpleQueue()
        self._values = model.values
        self._arriving: ArrivingBuckets | None = None
        self._last: ArrivingBuckets | None = None
        """The last one, which a device may still copy from."""
        self._is_wanted: Callable[[], bool] = lambda: True
        self._left: set[int] = set()
        self._waited_s = 0.0
        is_plain = all(parameter.dtype == torch.float32 for parameter in model.dense)
        self._waits_for_all = not (isinstance(model.graph, LayerGraph) and is_plain and not model.compiles)
        if not self._waits_for_all:
            self._watch(model)

    # -- they come -----------------------------------------------------------------------------------------------------

    def ask(self, task: Task) -> ArrivingBuckets:
        """Have the dense parameters of a task fetched, from any thread."""
        vector = self._connections.memory.floats(max(each.last for each in self._buckets))
        arriving = ArrivingBuckets(vector, [threading.Event() for _ in self._buckets])
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
            self._connections.close()

    def _fetch(self, task: Task, arriving: ArrivingBuckets) -> None:
        for numbers in self._rounds:
            pieces = [self._buckets[number] for number in numbers]
            self._connections.pull_buckets(task.assign, pieces, arriving.vector, lambda: self._wanted(task))
            for number in numbers:
                arriving.came[number].set()

    # -- and are waited for, by the main thread ------------------------------------------------------------------------

    def _watch(self, model: ServedModel) -> None:
        """Have each layer wait for what it needs; what no layer has, the first waits for."""
        places, offset = {}, 0
        for parameter in model.dense:
            places[id(parameter)] = (offset, offset + parameter.numel())
            offset += parameter.numel()
        modules = [block.module for block in model.graph.blocks]  # type: ignore[union-attr]
        needs = [
            self._overlapping(places[id(each)] for each in module.parameters() if id(each) in places)
            for module in modules
        ]
        needs[0] |= set(range(len(self._buckets))) - set().union(*needs)
        for module, numbers in zip(modules, needs, strict=True):
            module.register_forward_pre_hook(self._before(numbers))

    def _overlapping(self, stretches: Iterable[tuple[int, int]]) -> set[int]:
        """Return the buckets that have any of some stretches of the vector."""
        wanted = list(stretches)
        return {
            number
            for number, each in enumerate(self._buckets)
            if any(each.first < last and each.last > first for first, last in wanted)
        }

    def _before(self, numbers: set[int]) -> Callable[[nn.Module, Any], None]:
        return lambda _module, _arguments: self._take(numbers)

    def begin(self, arriving: ArrivingBuckets | None, wanted: Callable[[], bool]) -> None:
        """Begin a task with parameters that are on their way, where they are."""
        if arriving is None:
            return
        self._arriving, self._is_wanted, self._waited_s = arriving, wanted, 0.0
        self._left = set(range(len(self._buckets)))
        if self._waits_for_all:
            self._take(self._left)

    def end(self) -> float:
        """Take all that no layer has waited for; return how long was waited in all."""
        self._take(self._left)
        self._last = self._arriving or self._last
        self._arriving, waited_s, self._waited_s = None, self._waited_s, 0.0
        return waited_s

    def _take(self, numbers: set[int]) -> None:
        """Wait for buckets, and put them where the model has them."""
        if self._arriving is None:
            return
        begun_s = time.perf_counter()
        for number in sorted(numbers & self._left):
            while not self._arriving.came[number].wait(LOOK_S):
                if not self._is_wanted():
                    raise Abandoned
            part = slice(self._buckets[number].first, self._buckets[number].last)
            self._values[part].copy_(torch.from_numpy(self._arriving.vector[part]), non_blocking=True)
            self._left.discard(number)
        self._waited_s += time.perf_counter() - begun_s


class DenseSync(Protocol):
    """A worker's side; all but `handle` and `reset` is the main thread's. Whoever need not do a thing leaves it out."""

    is_fetched: bool = False
    """Whether the dense parameters are fetched from servers, with the first micro-batch of a task."""
    pull: BucketPull | None = None
    """How they are fetched where they come in buckets."""

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
    """Servers keep the dense parameters, which are fetched with every task; gradients are pushed with its last ones."""

    def __init__(self, model: ServedModel, pull: BucketPull | None = None) -> None:
        """Take the gradients from a model."""
        self._gradients, self.pull = model.gradients, pull
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


class BucketPush(ServerSync):
    """Servers get the gradients bucket by bucket."""

    def __init__(
        self, model: ServedModel, buckets: Sequence[Bucket], sender: Sender, pull: BucketPull | None = None
    ) -> None:
        """Watch the gradients of a model whose vectors are in host memory."""
        super().__init__(model, pull)
        self._buckets, self._sender = buckets, sender
        self._task: Task | None = None
        """The one whose last backward pass is under way."""
        self._are_sent = False
        """Whether the vector has gradients that are sent."""
        self._left = [0] * len(buckets)
        """Parameters of each bucket whose gradients are not final."""
        self._sent: set[int] = set()
        self._lock = threading.Lock()
        self._under_way = threading.Semaphore(0)
        self._num_under_way = 0
        self._of_parameter: list[list[int]] = []
        offset = 0
        for parameter in model.dense:
            first, offset = offset, offset + parameter.numel()
            mine = [number for number, each in enumerate(buckets) if each.first < offset and each.last > first]
            parameter.register_post_accumulate_grad_hook(self._on_gradient(len(self._of_parameter)))  # type: ignore[no-untyped-call]
            self._of_parameter.append(mine)

    def _on_gradient(self, position: int) -> Callable[[Tensor], None]:
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
        """Have a bucket sent; its numbers stay as they are until it is."""
        task, each = self._task, self._buckets[number]
        if task is None:
            return
        self._sent.add(number)
        self._num_under_way += 1
        numbers: Floats = self._gradients[each.first : each.last].numpy()
        self._sender.put_bucket(task, each, numbers, self._under_way.release)

    def begin_last(self, task: Task | None = None) -> None:
        """Say that the backward pass that follows is the last of a task."""
        with self._lock:
            self._task, self._sent = task, set()
            self._left = [0] * len(self._buckets)
            for mine in self._of_parameter:
                for number in mine:
                    self._left[number] += 1

    def gradients_to_push(self) -> Floats | None:
        """Have the buckets sent that are left; where nobody watched the last pass, return all gradients."""
        with self._lock:
            if self._task is not None:
                for number in range(len(self._buckets)):
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
            # Whoever sends says so of each bucket, be it wanted or not.
            if self._under_way.acquire(timeout=SENT_LOOK_S):
                self._num_under_way -= 1
            elif not self._sender.is_at_work:
                break
        self._gradients.zero_()


def through_servers(
    process: Process,
    model: ServedModel,
    sender: Sender,
    *,
    wanted: Callable[[Task], bool],
    rests: Callable[[], None] = lambda: None,
) -> ServerSync:
    """Return how a worker's dense parameters come from servers and gradients get there: in buckets where that pays.

    A GPU's gradients, and those that are scaled in float16, go in one piece all the same.
    """
    buckets = buckets_of(process.blueprint) if len(model.gradients) else ()
    if not buckets:
        return ServerSync(model)
    connections = connect_to_servers(process, "dense", memory=PinnedMemory(model.device))
    pull = BucketPull(model, buckets, connections, wanted, rests)
    if model.device.type == "cpu" and model.loss_scale is None:
        return BucketPush(model, buckets, sender, pull)
    return ServerSync(model, pull)
