"""The tasks of a worker: messages of the coordinator in, micro-batches to compute out.

The control thread hands messages in, the main thread says what it has computed; nothing here waits, sends or looks at
the clock. A task is known by (step, task) within a generation of the run, and every position of it is given out once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from dovetail.runtime.dispatch.tail import num_given_back
from dovetail.runtime.messages import Assign, Close, Extend, GaveBack, GiveBack, Message, More, Recall, Reset
from dovetail.runtime.worker.tasks.task import MicroBatch, Task, divide

SMALLER_FIRST = 4
"""The first micro-batch of a step is so many times smaller: everyone asks the servers at once, and computes sooner."""
PARTS = 3
"""Into so many micro-batches, at least, an open task is cut: the last of them can be given back."""
LEAST = 64
"""The fewest samples that these have."""
LONG = 4.0
"""How many times what it takes to fetch one they take to compute, at least."""
FOLLOWED = 0.3
"""How much of the way to what was last seen the estimates go."""


@dataclass(frozen=True, slots=True)
class News:
    """What a message leads to."""

    micro_batches: tuple[MicroBatch, ...] = ()
    """To be fetched and computed, in this order."""
    answer: GaveBack | None = None
    """To be told first."""
    more: More | None = None
    """To be asked at once, by a task that has no work left to begin."""
    may_be_whole: bool = False
    """Whether a task may have become whole without anything left to compute."""


class TaskProgress(Enum):
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
        self.throughput = Throughput()
        """By which a worker knows what it can give back; the main thread tells it of what was computed."""
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
            elif isinstance(message, GiveBack) and message.generation == self.generation:
                return self._give_back(message)
        return News()

    def _reset(self, generation: int) -> None:
        """Throw everything away; the generation may be the same, and its tasks are handed out anew."""
        self.generation = generation
        for task in self._tasks.values():
            task.recalled = True
        self._tasks.clear()

    def _assign(self, message: Assign) -> News:
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
        return News(more=_asks_now(task), may_be_whole=task.closed)

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

    def _give_back(self, message: GiveBack) -> News:
        """Have others compute what is not begun, as far as they end it sooner; the first micro-batch stays."""
        task = self._tasks.get((message.step, message.task))
        answer = GaveBack(generation=message.generation, step=message.step, task=message.task)
        if task is None:
            return News(answer=answer)
        unbegun = [each for each in task.unbegun if each.number > 0]
        sample_s = self.throughput.busy_s(1)
        count = num_given_back(
            [each.last - each.first for each in unbegun],
            left_s=max(0.0, task.begun_s + sample_s * task.begun_samples - time.monotonic()),
            sample_s=sample_s,
            taker_samples_per_s=message.samples_per_s,
            taker_fixed_s=message.fixed_s,
        )
        if not count:
            return News(answer=answer)
        for each in unbegun[-count:]:
            task.unbegun.pop()
            task.given_back.add(each.number)
            task.num_known -= 1
            task.num_positions -= each.last - each.first
        ranges = tuple((each.first, each.last) for each in unbegun[-count:])
        asks = not (task.unbegun or task.closed or task.asked_for_more)
        return News(
            answer=msgspec.structs.replace(answer, ranges=ranges),
            more=_asks_now(task) if asks else None,
            may_be_whole=task.closed,
        )

    def _micro_batches(self, task: Task, first: int, last: int, *, begins: bool = False) -> list[MicroBatch]:
        """Return positions in micro-batches that fit the memory; an open task `begins` with a small one."""
        most = max(1, last - first) if self._undivided else self._most_at_once()
        small = max(1, most // SMALLER_FIRST) if begins and task.assign.is_open and not self._undivided else None
        if small is not None:
            most = self._most_of_open(last - first, most)
        found = []
        for begin, end in divide(first, last, most, smaller_first=small):
            found.append(MicroBatch(task, task.next_number, begin, end))
            task.next_number += 1
            task.num_known += 1
            task.num_positions += end - begin
        task.unbegun.extend(found)
        return found

    def _most_of_open(self, samples: int, most: int) -> int:
        """Return how large micro-batches are of which the last may be given back: smaller where they take long."""
        smaller = max(LEAST, -(-samples // PARTS))
        return min(most, smaller) if self.throughput.busy_s(smaller) > LONG * self.throughput.fetch_s else most

    # -- asked by the threads that fetch, compute and send -------------------------------------------------------------

    def is_wanted(self, task: Task) -> bool:
        """Say whether work on a task still counts."""
        return task.assign.generation == self.generation and not task.recalled

    def begins(self, micro_batch: MicroBatch) -> bool:
        """Note that a micro-batch is begun; False where it was given back."""
        task = micro_batch.task
        with self._lock:
            if micro_batch.number in task.given_back:
                return False
            while task.unbegun and task.unbegun[0].number <= micro_batch.number:
                task.unbegun.popleft()
            task.begun_s, task.begun_samples = time.monotonic(), micro_batch.last - micro_batch.first
        return True

    def should_ask_for_more(self, micro_batch: MicroBatch) -> bool:
        """Say, once, that what is about to be computed is the last known of an open task."""
        task = micro_batch.task
        with self._lock:
            is_last = not any(each.number > micro_batch.number for each in task.unbegun)
            asks = is_last and not task.closed and not task.asked_for_more
            task.asked_for_more = task.asked_for_more or asks
        return asks

    def is_last(self, task: Task) -> bool:
        """Say whether the micro-batch that is being computed is known to be the last of its task."""
        return task.closed and task.num_computed == task.num_known - 1

    def computed(self, task: Task) -> TaskProgress:
        """Note that a micro-batch was computed."""
        with self._lock:
            task.num_computed += 1
            if task.is_whole:
                return TaskProgress.WHOLE
            return TaskProgress.RAN_OUT if task.num_computed == task.num_known else TaskProgress.GOES_ON

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


def _asks_now(task: Task) -> More | None:
    """Return what an open task asks that has nothing left to begin, and note that it asked."""
    assign, task.asked_for_more = task.assign, task.assign.is_open
    return More(generation=assign.generation, step=assign.step, task=assign.task) if assign.is_open else None


class Throughput:
    """How fast a worker is by its own count: seconds a sample takes to compute, and a micro-batch to fetch."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._sample_s = 0.0
        self.fetch_s = 0.0

    def add(self, *, samples: int, compute_s: float, fetch_s: float) -> None:
        """Note a micro-batch."""
        if samples:
            self._sample_s = _followed(self._sample_s, compute_s / samples)
        self.fetch_s = _followed(self.fetch_s, fetch_s)

    def busy_s(self, samples: int) -> float:
        """Return how long so many samples will take."""
        return samples * self._sample_s


def _followed(value: float, seen: float) -> float:
    return seen if not value else value + FOLLOWED * (seen - value)
