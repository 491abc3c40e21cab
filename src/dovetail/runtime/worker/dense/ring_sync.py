"""Dense parameters kept the same by a ring: what a worker does for it, between its tasks and after each."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

from dovetail.errors import DovetailError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import (
    Apply,
    Assign,
    Holds,
    InRing,
    JoinRing,
    Message,
    Reduced,
    RingBroken,
    RingMeets,
    Saved,
    SaveDense,
    SaveFailed,
    Span,
    SumUp,
)
from dovetail.runtime.process import Process
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.dense.ring import Ring
from dovetail.runtime.worker.dense.sync import DenseSync
from dovetail.runtime.worker.links.servers import Abandoned, now_s
from dovetail.runtime.worker.tasks.task import Task

Tell = Callable[[Message], None]


class RingSync(DenseSync):
    """Takes part in one ring after the other, as the coordinator says; the servers know nothing of it."""

    def __init__(
        self, process: Process, model: ServedModel, tell: Tell, *, part: slice | None = None, stage: int = 0
    ) -> None:
        """Watch the model's gradients; those of a stage are a `part` of the whole model's."""
        self._name, self._tell, self._gradients = process.name, tell, model.gradients
        whole = slice(0, process.blueprint.dense_size)
        self._ring = Ring(process, model.values, model.gradients, part=part or whole, number=stage)
        self._ring.watch(model.dense)
        self._generation = 0
        self._joined = -1
        """The generation of the ring that this worker has a place in; the main thread writes it."""
        self._saved: Saved | None = None
        self._calls: queue.SimpleQueue[JoinRing | SumUp] = queue.SimpleQueue()

    def has_step(self, generation: int, step: int) -> bool:
        """Say whether this worker is in the ring of a generation, and holds so many steps: else nobody counts on it."""
        return self._joined == generation and self._ring.version >= step

    def reset(self, generation: int) -> None:
        """Throw away the step under way, and say which parameters this worker holds."""
        self._generation = generation
        self._ring.forget_sum()
        self._tell(Holds(name=self._name, generation=generation, era=self._ring.era, version=self._ring.version))

    def handle(self, message: Message) -> bool:
        """Do what the coordinator says, in the control thread; what takes others is left to the main thread."""
        if isinstance(message, JoinRing | SumUp | Apply | SaveDense) and message.generation != self._generation:
            return True  # of work that was thrown away
        if isinstance(message, JoinRing | SumUp):
            self._calls.put(message)
        elif isinstance(message, Apply):
            self._ring.apply(message)
        elif isinstance(message, SaveDense):
            self._tell(self._save(message))
        else:
            return False
        return True

    def _save(self, message: SaveDense) -> Saved | SaveFailed:
        """Write the dense parameters, and return what became of it."""
        generation, number = message.generation, message.number
        if self._saved is not None and (self._saved.generation, self._saved.number) == (generation, number):
            return self._saved  # it was told twice
        try:
            if message.step != self._ring.version:  # it was not told of a commit
                raise TrainingError(
                    f"the checkpoint is of step {message.step}, and {self._name} holds {self._ring.version}",
                    hint="the next one will be whole",
                )
            files = self._ring.save(Path(message.folder))
        except (DovetailError, OSError) as error:
            hint = error.hint if isinstance(error, DovetailError) else "check the disk"
            return SaveFailed(name=self._name, generation=generation, number=number, error=str(error), hint=hint)
        self._saved = Saved(name=self._name, generation=generation, number=number, files=files)
        return self._saved

    def catch_up(self, is_current: Callable[[int], bool]) -> None:
        """Take a place in a new ring, or add up, where there is a call for it of a generation that `is_current`."""
        while not self._calls.empty():
            message = self._calls.get()
            generation = message.generation
            if not is_current(generation):
                continue
            try:
                if isinstance(message, SumUp):
                    self._sum(message, lambda: is_current(generation))  # noqa: B023 - used at once
                elif not message.meeting and len(message.members) > 1:
                    meeting = self._ring.meet(message.members)
                    self._tell(RingMeets(name=self._name, generation=generation, meeting=meeting))
                else:
                    self._ring.join(message, lambda: is_current(generation))  # noqa: B023 - used at once
                    self._joined = generation
                    self._tell(InRing(name=self._name, generation=generation, version=self._ring.version))
            except Abandoned:
                continue
            except RuntimeError as problem:
                self._broken(generation, message.step, problem)

    def _sum(self, message: SumUp | Assign, wanted: Callable[[], bool]) -> None:
        """Sum the dense gradients of a step with the others, and say so."""
        square = self._ring.reduce(message.step, wanted)
        self._tell(Reduced(name=self._name, generation=message.generation, step=message.step, square=square))

    def close(self) -> None:
        """Close the meeting place, where this worker keeps one."""
        self._ring.close()

    def begin_task(self) -> None:
        """Count gradients from zero."""
        self._gradients.zero_()

    def begin_last(self, task: Task | None = None) -> None:
        """Have gradients summed while the backward pass that follows goes on."""
        self._ring.overlap()

    def finish(self, task: Task, wanted: Callable[[], bool]) -> Span | None:
        """Sum the dense gradients with the others and wait until the step is committed; None where nobody wants it."""
        assign, begin_s = task.assign, now_s()
        try:
            self._sum(assign, wanted)
            self._ring.wait_applied(assign.step, wanted)
        except Abandoned:
            return None
        except RuntimeError as problem:
            if wanted():
                self._broken(assign.generation, assign.step, problem)
            return None
        return Span("reduce", begin_s, now_s(), assign.step)

    def _broken(self, generation: int, step: int, problem: RuntimeError) -> None:
        """Tell the coordinator that the ring does not hold."""
        text = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        self._tell(RingBroken(name=self._name, generation=generation, step=step, error=text))
