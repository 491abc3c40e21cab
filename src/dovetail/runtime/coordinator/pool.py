"""Tasks of a run in `ssp` and `async`: each applied on its own, once; what a lost worker held is handed out again.

Pure: `pool_work` tells what happened and sends what comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dovetail.runtime.coordinator.journal import TaskLine


@dataclass(slots=True)
class PoolTask:
    """A task: positions `first` up to but not including `last`, over all epochs; all are of one epoch."""

    number: int
    first: int
    last: int
    worker: str = ""
    handed_s: float = 0.0
    accepted: set[str] = field(default_factory=set)
    """Servers that have applied it."""

    @property
    def num_positions(self) -> int:
        """Return how many positions it covers."""
        return self.last - self.first

    @property
    def line(self) -> TaskLine:
        """Return it as the journal has it."""
        return (self.number, self.first, self.last)


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
    def under_way(self) -> list[PoolTask]:
        """Return the tasks that are not done."""
        return [*self.held.values(), *self.returned]

    @property
    def num_done(self) -> int:
        """Return how many positions are done."""
        return self.position - sum(task.num_positions for task in self.under_way)

    @property
    def is_finished(self) -> bool:
        """Say whether every position is done."""
        return self.position >= self.total and not self.held and not self.returned

    def held_by(self, worker: str) -> int:
        """Return how many tasks a worker holds."""
        return sum(task.worker == worker for task in self.held.values())

    def give_back(self, lines: Iterable[TaskLine]) -> None:
        """Have tasks handed out again under their numbers."""
        self.returned.extend(PoolTask(*line) for line in lines)

    def take(self, worker: str, samples: int, now_s: float) -> PoolTask | None:
        """Return the next task for a worker, or None where nothing is left."""
        if self.returned:
            task = self.returned.popleft()
        elif self.position < self.total:
            end_of_epoch = (self.position // self.samples + 1) * self.samples
            task = PoolTask(self.next_number, self.position, min(end_of_epoch, self.position + samples))
            self.next_number += 1
            self.position = task.last
        else:
            return None
        task.worker, task.handed_s = worker, now_s
        self.held[task.number] = task
        return task

    def accept(self, server: str, number: int, num_servers: int) -> PoolTask | None:
        """Note that a server has applied a task; return it once all have."""
        task = self.held.get(number) or next((each for each in self.returned if each.number == number), None)
        if task is None:
            return None
        task.accepted.add(server)
        if len(task.accepted) < num_servers:
            return None
        if number in self.held:
            del self.held[number]
        else:
            self.returned.remove(task)
        if task.worker in self.clocks:
            self.clocks[task.worker] += 1
        return task

    def take_back(self, number: int) -> None:
        """Have a task handed out again under its number: a server that applied it will not do so again."""
        self.returned.append(self.held.pop(number))

    def drop_worker(self, worker: str) -> None:
        """Take back a worker's tasks."""
        for number in [task.number for task in self.held.values() if task.worker == worker]:
            self.take_back(number)
        self.clocks.pop(worker, None)

    def may_begin(self, worker: str, staleness: int | None) -> bool:
        """Say whether a worker may begin another task: it is at most `staleness` tasks ahead of the slowest."""
        if staleness is None or len(self.clocks) < 2:
            return True
        return self.clocks.get(worker, 0) <= min(self.clocks.values()) + staleness

    def clocks_of(self, worker: str) -> dict[str, int]:
        """Return how many tasks a worker has done, and the slowest: servers have applied that many of everyone."""
        slowest = min(self.clocks.values(), default=0)
        return {"clock": self.clocks.get(worker, slowest), "slowest": slowest}

    def join(self, worker: str) -> None:
        """Start a worker's clock with the slowest."""
        self.clocks.setdefault(worker, min(self.clocks.values(), default=0))
