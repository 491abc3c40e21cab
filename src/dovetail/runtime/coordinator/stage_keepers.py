"""Dense parameters that lie with the stages of a run: those of each with its own workers, in a ring of theirs.

Workers of a later stage do not know which micro-batch is the last of a step. The coordinator does: when every server
has all of it, every micro-batch has been through the stages and back, and their workers are told to add up. What a
stage adds up is of a whole step, so a step of which a worker was lost is computed again, whichever stage it was of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.dense_keepers import DenseKeepers, NormsWaitForAll, RingKeepsDense, ServersKeepDense
from dovetail.runtime.coordinator.members import Worker
from dovetail.runtime.coordinator.roster import Roster
from dovetail.runtime.coordinator.work import BeginAgain, GoBack, Wish
from dovetail.runtime.messages import Message, SumUp


class LaterStageKeepsDense(RingKeepsDense):
    """The workers of a stage after the first: they sum when they are told to."""

    def __init__(
        self, roster: Roster, decisions: Decisions, workers: Callable[[], Mapping[str, Worker]], *, clips: bool
    ) -> None:
        """Start without a ring; where the run `clips`, even one worker alone is asked for the norm of its gradient."""
        super().__init__(roster, decisions, workers)
        self._clips, self._told = clips, -1

    def stand(self, step: int, checkpoint_folder: str, holders: tuple[str, ...], now_s: float) -> None:
        """Begin a generation, in which nobody was told anything yet."""
        super().stand(step, checkpoint_folder, holders, now_s)
        self._told = -1

    def has_summed(self, step: int) -> bool:
        """Say whether every worker holds the sum; tell them to add up where they were not told yet."""
        if not self.are_there or step != self._step:
            return False
        if len(self._members) == 1 and not self._clips:
            return True
        if self._told != step:
            self._told = step
            self._tell_all(SumUp(generation=self._roster.generation, step=step))
        return super().has_summed(step)


class StagesKeepDense(DenseKeepers):
    """One ring a stage that has dense parameters."""

    everyone = True
    servers_clip = False

    def __init__(self, blueprint: Blueprint, roster: Roster, decisions: Decisions) -> None:
        """Start without rings."""
        self._stage_of = {spec.name: number for number, stage in enumerate(blueprint.stages) for spec in stage.workers}
        clips = blueprint.run.optimizer.clip_norm is not None
        self._rings: dict[int, RingKeepsDense] = {}
        for number, stage in enumerate(blueprint.stages):
            if stage.has_dense and number == 0:
                self._rings[0] = RingKeepsDense(roster, decisions, lambda: roster.workers)
            elif stage.has_dense:
                self._rings[number] = LaterStageKeepsDense(roster, decisions, _workers_of(roster, number), clips=clips)
        self.num_savers = len(self._rings)

    def _ring_of(self, name: str) -> RingKeepsDense | None:
        """Return the ring that a worker belongs to; those of the first stage need not be known by name."""
        return self._rings.get(self._stage_of.get(name, 0))

    @property
    def are_there(self) -> bool:
        """Say whether every ring is formed."""
        return all(ring.are_there for ring in self._rings.values())

    @property
    def holders(self) -> tuple[str, ...]:
        """Return the workers that hold parameters, of all stages."""
        return tuple(name for ring in self._rings.values() for name in ring.holders)

    def stand(self, step: int, checkpoint_folder: str, holders: tuple[str, ...], now_s: float) -> None:
        """Begin a generation."""
        for number, ring in self._rings.items():
            mine = tuple(name for name in holders if self._stage_of.get(name, 0) == number)
            ring.stand(step, checkpoint_folder, mine, now_s)

    def has_summed(self, step: int) -> bool:
        """Say whether every stage has; all are told to add up at once."""
        have = [ring.has_summed(step) for ring in self._rings.values()]
        return all(have)

    def norm_square(self) -> float:
        """Return the squared norm of the gradient over all stages."""
        return sum(ring.norm_square() for ring in self._rings.values())

    def apply(self, step: int, scale: float, factor: float) -> None:
        """Have every stage apply a step."""
        for ring in self._rings.values():
            ring.apply(step, scale, factor)

    def join(self, worker: Worker, now_s: float) -> bool:
        """Take in a worker that came later, of whichever stage."""
        ring = self._ring_of(worker.name)
        return ring is None or ring.join(worker, now_s)

    def drop(self, name: str) -> Wish | None:
        """Have the step computed again: what the others added up holds some of what a lost worker did."""
        ring = self._ring_of(name)
        wish = ring.drop(name) if ring is not None else None
        return wish or BeginAgain(f"{name} is gone; the step under way begins again")

    def handle(self, message: Message, now_s: float) -> Wish | None:
        """Take in what a worker of one of the rings says."""
        ring = self._ring_of(getattr(message, "name", ""))
        return ring.handle(message, now_s) if ring is not None else None

    def tick(self, now_s: float) -> Wish | None:
        """Do what is due by time; that one stage has to go back comes before what others wish."""
        wishes = [wish for ring in self._rings.values() if (wish := ring.tick(now_s)) is not None]
        return next((wish for wish in wishes if isinstance(wish, GoBack)), wishes[0] if wishes else None)

    def save(self, number: int, step: int, folder: str) -> None:
        """Have each stage write its parameters."""
        for ring in self._rings.values():
            ring.save(number, step, folder)


def _workers_of(roster: Roster, stage: int) -> Callable[[], Mapping[str, Worker]]:
    """Return what says who is there of a stage after the first."""
    return lambda: {name: roster.stage_workers[name] for name in roster.staff[stage - 1]}


def dense_keepers(blueprint: Blueprint, roster: Roster, decisions: Decisions) -> DenseKeepers:
    """Return those that the run asks for."""
    if blueprint.run.training.dense != "ring":
        return NormsWaitForAll() if blueprint.run.training.batch_norm == "global" else ServersKeepDense()
    if blueprint.stages:
        return StagesKeepDense(blueprint, roster, decisions)
    return RingKeepsDense(roster, decisions, lambda: roster.workers)
