"""Steps of a run in `sync`: each a global batch divided into tasks, committed when every server has every task.

Pure: `task_scheduler` and `sync_work` tell what happened and send what comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.runtime.dispatch import StepPlan
from dovetail.runtime.messages import Accepted, MaskKey


@dataclass(slots=True)
class StepTask:
    """A part of a step that one worker pushes at once; where the worker is lost, another does all of it again."""

    number: int
    worker: str
    ranges: list[tuple[int, int]]
    is_open: bool
    handed_s: float
    accepted: set[str] = field(default_factory=set)
    """Servers that have its gradients."""
    samples: int = 0
    loss: float = 0.0
    doubled: bool = False
    """Handed to a second worker, because the first is late."""
    is_asked_back: bool = False
    """Whether its worker was asked to give back what it has not begun, and has not answered."""
    is_at_last: bool = False
    """Whether its worker has begun all that it was given, as far as is known."""
    has_given: bool = False
    busy_until_s: float | None = None
    """Until when its worker said, when it began the last of what it had, that it will be at it."""
    early: list[Accepted] = field(default_factory=list)
    """What came before the answer of a worker that gave something back."""

    def is_longer(self, seconds: float | None) -> None:
        """Note that it has become longer by so many seconds; None where nobody knows."""
        if self.busy_until_s is not None:
            self.busy_until_s = None if seconds is None else self.busy_until_s + seconds

    @property
    def num_positions(self) -> int:
        """Return how many positions it covers."""
        return sum(last - first for first, last in self.ranges)


@dataclass(slots=True)
class Step:
    """One global batch: positions `first` up to but not including `last` of an epoch."""

    number: int
    epoch: int
    first: int
    last: int
    plan: StepPlan
    tasks: dict[int, StepTask] = field(default_factory=dict)
    planned: dict[str, StepTask] = field(default_factory=dict)
    """Tasks that wait for their workers to be free."""
    orphans: deque[StepTask] = field(default_factory=deque)
    """Tasks whose workers are lost."""
    masks: tuple[MaskKey, ...] = ()
    """Where sums are masked: who takes part, all of whom have to."""
    next_number: int = 0
    tail: int = 0
    """The first position that nobody has taken."""
    begun_s: float = 0.0
    norms: dict[str, float] = field(default_factory=dict)
    """Of each server: its part of the gradient's squared norm."""
    told_s: float | None = None
    """When the servers were last told to apply it, or asked for norms."""
    committed: set[str] | None = None
    """Servers that have applied it; None before it is decided."""

    @classmethod
    def divided(
        cls, number: int, *, epoch: int, first: int, last: int, plan: StepPlan, now_s: float, everyone: bool = False
    ) -> Step:
        """Return a step with a task planned for each worker that gets a main share, or for `everyone`."""
        step = cls(number, epoch, first, last, plan, begun_s=now_s)
        position = first
        for worker, samples in plan.main.items():
            if samples or everyone:
                step.planned[worker] = step._new_task(worker, (position, position + samples), now_s)
                position += samples
        step.tail = position
        return step

    @property
    def num_positions(self) -> int:
        """Return how many positions the step covers."""
        return self.last - self.first

    @property
    def tail_left(self) -> int:
        """Return how many positions nobody has taken yet."""
        return self.last - self.tail

    def task_for(self, worker: str, num_servers: int, now_s: float) -> StepTask | None:
        """Return the next task of a free worker: its own, one whose worker is lost, or None."""
        task = self.planned.pop(worker, None)
        while task is None and self.orphans:
            orphan = self.orphans.popleft()
            if len(orphan.accepted) < num_servers and not (orphan.doubled and orphan.worker == worker):
                task = orphan
                task.worker, task.is_open = worker, False
        if task is not None:
            task.handed_s = now_s
            task.is_open = task.is_open and self.tail_left > 0
            self.tasks[task.number] = task
        return task

    def extend(self, task: StepTask, samples: int) -> tuple[int, int]:
        """Give a task the next positions of the tail."""
        piece = (self.tail, min(self.last, self.tail + samples))
        self.tail = piece[1]
        task.ranges.append(piece)
        task.is_at_last = False
        return piece

    def new_tail_task(self, worker: str, samples: int, now_s: float) -> StepTask:
        """Return a task from the tail for a worker that has none of its own."""
        piece = (self.tail, min(self.last, self.tail + samples))
        self.tail = piece[1]
        task = self._new_task(worker, piece, now_s)
        self.tasks[task.number] = task
        return task

    def orphan_tail(self, now_s: float) -> None:
        """Make the rest of the tail a task for whoever is free next: nobody who is at work will ask for it."""
        task = self._new_task("", (self.tail, self.last), now_s)
        task.is_open = False
        self.tail = self.last
        self.orphans.append(task)

    def take_back(self, task: StepTask, ranges: Sequence[tuple[int, int]]) -> bool:
        """Take back the last positions of a task; False where they are not, or servers have others of it."""
        left = list(task.ranges)
        for first, last in reversed(ranges):
            if not left or left[-1][1] != last or not left[-1][0] <= first < last:
                return False
            begin, _ = left.pop()
            left += [(begin, first)] if begin < first else []
        task.ranges, task.is_asked_back, task.has_given = left, False, bool(ranges)
        task.is_at_last = task.is_at_last or not ranges
        early, task.early = task.early, []
        are_all_of_it = [self.accept(message) for message in early]
        return all(are_all_of_it)

    def orphan(self, ranges: Sequence[tuple[int, int]], now_s: float) -> None:
        """Make positions that were taken back a task for whoever is free next."""
        task = self._new_task("", ranges[0], now_s)
        task.ranges, task.is_open = list(ranges), False
        self.orphans.append(task)

    def drop_worker(self, worker: str, num_servers: int) -> bool:
        """Have others do what a lost worker has not finished; False where servers have other positions than it had."""
        if worker in self.planned:
            self.orphans.append(self.planned.pop(worker))
        is_well = True
        for task in self.tasks.values():
            if task.worker == worker and len(task.accepted) < num_servers and task not in self.orphans:
                self.orphans.append(task)
                is_well = is_well and not task.early
                task.is_asked_back, task.early = False, []
        return is_well

    def accept(self, message: Accepted) -> bool:
        """Note that a server has a task's gradients; False where they are of other positions than the task's."""
        task = self.tasks.get(message.task)
        if task is None:
            return True
        if task.is_asked_back and message.positions != task.num_positions:
            task.early.append(message)  # its worker's answer is on its way
            return True
        task.accepted.add(message.name)
        task.samples, task.loss = message.samples, message.loss
        return message.positions == task.num_positions

    def is_whole(self, num_servers: int) -> bool:
        """Say whether every server has the gradients of every position."""
        return (
            self.tail_left == 0
            and not self.planned
            and all(len(task.accepted) >= num_servers for task in self.tasks.values())
            and all(len(task.accepted) >= num_servers for task in self.orphans)
        )

    def open_tasks(self, num_servers: int) -> list[StepTask]:
        """Return the tasks that workers are at."""
        return [task for task in self.tasks.values() if len(task.accepted) < num_servers and task not in self.orphans]

    @property
    def samples(self) -> int:
        """Return the samples that were there: broken ones are left out."""
        return sum(task.samples for task in self.tasks.values())

    @property
    def samples_by_worker(self) -> dict[str, int]:
        """Return who did how many samples."""
        counts: dict[str, int] = {}
        for task in self.tasks.values():
            counts[task.worker] = counts.get(task.worker, 0) + task.samples
        return counts

    @property
    def loss(self) -> float:
        """Return the sum of the losses."""
        return sum(task.loss for task in self.tasks.values())

    def _new_task(self, worker: str, positions: tuple[int, int], now_s: float) -> StepTask:
        task = StepTask(self.next_number, worker, [positions], is_open=True, handed_s=now_s)
        self.next_number += 1
        return task
