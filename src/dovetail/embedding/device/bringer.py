"""The thread that brings keys and arrays of announced batches to the device, on a stream of its own.

What is announced is copied to pinned memory first; neither the thread that trains nor the planner has time for that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from dovetail.embedding.device.plan import Plan
from dovetail.embedding.device.streams import Moment, Streams


class Bringer:
    """Brings batches in the order in which they are asked for, and hands each on."""

    def __init__(self, streams: Streams, hand_on: Callable[[Plan], None]) -> None:
        self._streams, self._hand_on = streams, hand_on
        self._queue: queue.SimpleQueue[tuple[Plan, tuple[NDArray[Any], ...], Moment | None] | None]
        self._queue = queue.SimpleQueue()
        self.turn = threading.Lock()
        """Held while a batch is brought, and by those who want the device to themselves."""
        self._thread = threading.Thread(target=self._run, name="dovetail-bringer", daemon=True)
        self._thread.start()

    def ask(self, plan: Plan, arrays: tuple[NDArray[Any], ...]) -> None:
        """Have a batch's keys and arrays brought; those who gave them must not change them before it is looked up."""
        on_device = isinstance(plan.keys, Tensor) and plan.keys.is_cuda
        self._queue.put((plan, arrays, self._streams.moment() if on_device else None))

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (asked := self._queue.get()) is not None:
            plan, arrays, before = asked
            try:
                with self.turn:
                    self._bring(plan, arrays, before)
            except BaseException as error:  # whoever takes the batch says it
                plan.error = error
            self._hand_on(plan)

    def _bring(self, plan: Plan, arrays: tuple[NDArray[Any], ...], before: Moment | None) -> None:
        streams = self._streams
        with streams.on(streams.bringing):
            streams.wait_for(before)
            if isinstance(plan.keys, Tensor):
                plan.there = plan.keys.to(streams.device)
                plan.inputs = tuple(streams.up_together(arrays))
            else:
                plan.there, *inputs = streams.up_together((plan.keys, *arrays))
                plan.inputs = tuple(inputs)
            plan.given = streams.moment()
