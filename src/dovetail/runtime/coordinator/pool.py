"""Tasks of a run in `ssp` and `async`: each applied on its own, once; what a lost worker held is handed out again.

Pure: the loop tells what happened and sends what comes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class PoolTask:
    """A task: positions `first` up to but not including `last` of an epoch."""

    number: int
    epoch: int
    first: int
    last: int
    worker: str = ""
    handed_s: float = 0.0
    accepted: set[str] = field(default_factory=set)


@dataclass(slots=True)
class TaskPool:
    """Hands out positions of all epochs in turn, `samples` an epoch."""

    samples: int
    epochs: int
    position: int = 0
    """Over all epochs: the first that was not handed out."""
    next_number: int = 0
    held: dict[int, PoolTask] = field(default_factory=dict)
    returned: deque[PoolTask] = field(default_factory=deque)
    clocks: dict[str, int] = field(default_factory=dict)
    """Tasks that each worker has finished."""

    @property
    def total(self) -> int:
        """Return the positions of all epochs."""
        return self.samples * self.epochs

    @property
    def is_finished(self) -> bool:
        """Say whether every position is done."""
        return self.position >= self.total and not self.held and not self.returned

    def take(self, worker: str, samples: int, now_s: float) -> PoolTask | None:
        """Return the next task for a worker, or None where nothing is left."""
        if self.returned:
            task = self.returned.popleft()
        elif self.position < self.total:
            epoch, first = divmod(self.position, self.samples)
            last = min(self.samples, first + samples)
            task = PoolTask(self.next_number, epoch, first, last)
            self.next_number += 1
            self.position += last - first
        else:
            return None
        task.worker, task.handed_s = worker, now_s
        self.held[task.number] = task
        return task

    def add_gap(self, first: int, last: int) -> None:
        """Have positions done that were handed out before and are not done."""
        while first < last:
            epoch, begin = divmod(first, self.samples)
            end = min(self.samples, begin + last - first)
            self.returned.append(PoolTask(self.next_number, epoch, begin, end))
            self.next_number += 1
            first += end - begin

    def accept(self, server: str, number: int, num_servers: int) -> PoolTask | None:
        """Note that a server has applied a task; return it once all have."""
        task = self.held.get(number)
        if task is None:
            return None
        task.accepted.add(server)
        if len(task.accepted) < num_servers:
            return None
        del self.held[number]
        self.clocks[task.worker] = self.clocks.get(task.worker, 0) + 1
        return task

    def drop_worker(self, worker: str) -> int:
        """Take back a worker's tasks, under their numbers: a server that applied one will not do so again."""
        gone = [task for task in self.held.values() if task.worker == worker]
        for task in gone:
            del self.held[task.number]
            self.returned.append(task)
        self.clocks.pop(worker, None)
        return len(gone)

    def may_begin(self, worker: str, staleness: int | None) -> bool:
        """Say whether a worker may begin another task: it is at most `staleness` tasks ahead of the slowest."""
        if staleness is None or len(self.clocks) < 2:
            return True
        return self.clocks.get(worker, 0) <= min(self.clocks.values()) + staleness

    def join(self, worker: str) -> None:
        """Start a worker's clock with the slowest."""
        self.clocks.setdefault(worker, min(self.clocks.values(), default=0))
