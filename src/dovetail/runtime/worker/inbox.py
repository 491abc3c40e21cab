"""The tasks of a worker: messages of the coordinator in, micro-batches to compute out.

The control thread hands messages in, the main thread says what it has computed; nothing here waits, sends or looks at
the clock. A task is known by (step, task) within a generation of the run, and every position of it is given out once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dovetail.runtime.messages import Assign, Close, Extend, Message, More, Recall, Reset
from dovetail.runtime.worker.task import MicroBatch, Task, divide

SMALLER_FIRST = 4
"""The first micro-batch of a step is so many times smaller: everyone asks the servers at once, and computes sooner."""


@dataclass(frozen=True, slots=True)
class News:
    """What a message leads to."""

    micro_batches: tuple[MicroBatch, ...] = ()
    """To be fetched and computed, in this order."""
    more: More | None = None
    """To be asked at once, by a task that begins without work."""
    may_be_whole: bool = False
    """Whether a task may have become whole without anything left to compute."""


class Progress(Enum):
    """Where a task stands after a micro-batch was computed."""

    GOES_ON = "there are micro-batches left"
    RAN_OUT = "none is left, and it is not known whether more will come"
    WHOLE = "none is left, and none will come"


class Inbox:
    """What this worker has to do, in the generation that the run is in."""

    def __init__(self, most_at_once: Callable[[], int], *, undivided: bool = False) -> None:
        """Start without tasks; `most_at_once()` says how many samples a micro-batch may have now.

        Where tasks are `undivided`, each is one micro-batch.
        """
        self._most_at_once, self._undivided = most_at_once, undivided
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int], Task] = {}
        self.generation = 0

    def handle(self, message: Message) -> News:
        """Do what the coordinator says; a message of another generation, or about an unknown task, changes nothing."""
        with self._lock:
            if isinstance(message, Reset):
                self._reset(message.generation)
            elif isinstance(message, Assign):
                return self._assign(message)
            elif isinstance(message, Extend | Close | Recall) and message.generation == self.generation:
                task = self._tasks.get((message.step, message.task))
                if task is not None:
                    return self._change(task, message)
        return News()

    def _reset(self, generation: int) -> None:
        """Throw everything away; the generation may be the same, and its tasks are handed out anew."""
        self.generation = generation
        for task in self._tasks.values():
            task.recalled = True
        self._tasks.clear()

    def _assign(self, message: Assign) -> News:
        """Begin a task."""
        if message.generation != self.generation:
            return News()
        task = Task(message, closed=not message.is_open)
        self._tasks[message.step, message.task] = task
        micro_batches: list[MicroBatch] = []
        for first, last in message.ranges:
            micro_batches += self._micro_batches(task, first, last, begins=task.num_known == 0)
        task.num_assigned = task.num_known
        if micro_batches:
            return News(tuple(micro_batches))
        task.asked_for_more = message.is_open
        more = More(generation=message.generation, step=message.step, task=message.task) if message.is_open else None
        return News(more=more, may_be_whole=task.closed)

    def _change(self, task: Task, message: Extend | Close | Recall) -> News:
        """Give a task more work, or say that there is no more, or put it back."""
        if isinstance(message, Extend):
            task.asked_for_more = False
            return News(tuple(self._micro_batches(task, message.first, message.last)))
        if isinstance(message, Close):
            task.closed = True
            return News(may_be_whole=True)
        task.recalled = True
        del self._tasks[message.step, message.task]
        return News()

    def _micro_batches(self, task: Task, first: int, last: int, *, begins: bool = False) -> list[MicroBatch]:
        """Return positions in micro-batches that fit the memory; an open task `begins` with a small one."""
        most = max(1, last - first) if self._undivided else self._most_at_once()
        small = max(1, most // SMALLER_FIRST) if begins and task.assign.is_open and not self._undivided else None
        found = []
        for begin, end in divide(first, last, most, smaller_first=small):
            found.append(MicroBatch(task, task.num_known, begin, end))
            task.num_known += 1
            task.num_positions += end - begin
        return found

    # -- asked by the threads that fetch, compute and send -------------------------------------------------------------

    def is_wanted(self, task: Task) -> bool:
        """Say whether work on a task still counts."""
        return task.assign.generation == self.generation and not task.recalled

    def should_ask_for_more(self, micro_batch: MicroBatch) -> bool:
        """Say, once, that what is about to be computed is the last known of an open task."""
        task = micro_batch.task
        with self._lock:
            asks = micro_batch.number == task.num_known - 1 and not task.closed and not task.asked_for_more
            task.asked_for_more = task.asked_for_more or asks
        return asks

    def is_last(self, task: Task) -> bool:
        """Say whether the micro-batch that is being computed is known to be the last of its task."""
        return task.closed and task.num_computed == task.num_known - 1

    def computed(self, task: Task) -> Progress:
        """Note that a micro-batch was computed."""
        with self._lock:
            task.num_computed += 1
            if task.is_whole:
                return Progress.WHOLE
            return Progress.RAN_OUT if task.num_computed == task.num_known else Progress.GOES_ON

    def next_whole(self) -> Task | None:
        """Return the task of the earliest step, where it is whole."""
        with self._lock:
            first = min(self._tasks.values(), key=lambda task: task.assign.step, default=None)
            return first if first is not None and first.is_whole else None

    def take(self, task: Task) -> bool:
        """Take a task out, to be finished; False where it was thrown away meanwhile."""
        with self._lock:
            key = (task.assign.step, task.assign.task)
            if self._tasks.get(key) is not task:
                return False
            del self._tasks[key]
            return True
