"""Dense parameters that come slice by slice: the forward pass begins with those that its first layers need.

A thread asks servers for slice after slice, in the order of the layers; a server answers as soon as it has applied a
step to one. Before a layer runs, the main thread waits for the slices of its parameters.
"""

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
from torch import nn

from dovetail.models.layer_graph import LayerGraph
from dovetail.runtime.dense.slices import DenseSlice
from dovetail.runtime.worker.asking import Abandoned
from dovetail.runtime.worker.lines import Lines
from dovetail.runtime.worker.model import ServedModel
from dovetail.runtime.worker.task import Arriving, Task

Floats = NDArray[np.float32]
LOOK_S = 0.05
"""How often who waits for a slice looks whether it should still wait."""


class SlicedPull:
    """Gets the slices of one task after the other; `run` is the thread."""

    def __init__(
        self,
        slices: Sequence[DenseSlice],
        lines: Lines | None,
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
        self._queue: queue.SimpleQueue[tuple[Task, Arriving] | None] = queue.SimpleQueue()

    def ask(self, task: Task) -> Arriving | None:
        """Have the dense parameters of a task fetched; None where they do not come in slices."""
        if self._lines is None:
            return None
        arriving = Arriving(self._lines.memory.floats(self._size), [threading.Event() for _ in self._slices])
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

    def _fetch(self, task: Task, arriving: Arriving) -> None:
        """Fetch the slices of a task."""
        lines = self._lines
        for numbers in self._rounds if lines is not None else ():
            pieces = [self._slices[number] for number in numbers]
            lines.pull_slices(task.assign, pieces, arriving.vector, lambda: self._wanted(task))  # type: ignore[union-attr]
            for number in numbers:
                arriving.came[number].set()


class Gate:
    """Has layers wait for the slices of their parameters; the main thread's."""

    def __init__(self, model: ServedModel, slices: Sequence[DenseSlice]) -> None:
        """Watch the layers of a model; where it is compiled, or computes with copies, it waits for all at once."""
        self._values, self._slices = model.values, slices
        self._arriving: Arriving | None = None
        self._kept: Arriving | None = None
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

    def begin(self, arriving: Arriving | None, wanted: Callable[[], bool]) -> None:
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
