"""Who keeps the dense parameters in `sync`: the servers, or the workers in a ring, or in one ring a stage.

A ring is formed anew for every generation, never repaired. Which parameters a worker holds it says itself, by era and
steps: a ring begins with those of a member that holds all steps that count, else with the checkpoint's where the run
stands there, else the run has to go back.

Workers of a later stage do not know which micro-batch is the last of a step. The coordinator does: when every server
has all of it, every micro-batch has been through the stages and back, and their workers are told to add up. What a
stage adds up is of a whole step, so a step of which a worker was lost is computed again, whichever stage it was of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.membership import GRACE_S, Roster, Worker
from dovetail.runtime.coordinator.work import BeginAgain, Fail, GoBack, Wish
from dovetail.runtime.masking.masks import FEWEST
from dovetail.runtime.messages import (
    Apply,
    Holds,
    InRing,
    JoinRing,
    Message,
    Reduced,
    RingBroken,
    RingMeets,
    SaveDense,
    SumUp,
)

FORMING_S = 60.0
"""How long members may take to find each other."""
SETTLED_S = 0.3
"""How long nobody else must have come before a ring takes in those who did: they mostly come together."""
MOST_WAITED_S = 2.0
"""How long those who came first wait for others at most."""
MOST_BROKEN = 20
"""How many rings in a row may break before one of them came to anything."""


class DenseKeepers:
    """The servers, which are told of commits and checkpoints anyway: there is nothing to see to. Others say more."""

    everyone: bool = False
    """Whether every worker takes part in every step, and no other can do its part."""
    fewest: int = 1
    """Of workers, without whom no step begins."""
    num_savers: int = 0
    """How many of them, servers aside, write a part of a checkpoint."""
    servers_clip: bool = True
    """Whether the norm of the gradient lies with the servers."""

    @property
    def are_there(self) -> bool:
        """Say whether steps can be computed."""
        return True

    @property
    def holders(self) -> tuple[str, ...]:
        """Return the workers that hold the parameters."""
        return ()

    def stand(self, step: int, checkpoint_folder: str, holders: tuple[str, ...], now_s: float) -> None:
        """Begin a generation at a step; `holders` may still come, `checkpoint_folder` is of that step, if not empty."""
        return

    def has_summed(self, step: int) -> bool:
        """Say whether the step's gradients, which are all computed, are where they will be applied."""
        return True

    def norm_square(self) -> float:
        """Return the squared norm of the gradient that was summed, where servers do not have it."""
        return 0.0

    def apply(self, step: int, scale: float, factor: float) -> None:
        """Have a step applied, which counts from now on."""
        return

    def join(self, worker: Worker, now_s: float) -> bool:
        """Take in a worker that came later; False where it takes part from the next generation on."""
        return True

    def drop(self, name: str) -> Wish | None:
        """Go on without a worker."""
        return None

    def handle(self, message: Message, now_s: float) -> Wish | None:
        """Take in what a worker says."""
        return None

    def tick(self, now_s: float) -> Wish | None:
        """Do what is due by time."""
        return None

    def save(self, number: int, step: int, folder: str) -> None:
        """Have the parameters written, for the checkpoint of that number."""
        return


class NormsWaitForAll(DenseKeepers):
    """The servers do, and every worker waits for all others on its way: a step of which one was lost is done again."""

    everyone = True

    def drop(self, name: str) -> Wish | None:
        """Have the step computed again: the others wait for what a lost worker would have brought."""
        return BeginAgain(f"batch norms go on without {name}; the step under way begins again")


class MasksWaitForAll(DenseKeepers):
    """The servers do, and know a step's sum once every worker's masks are in it.

    A step of which one was lost is done again, by those who are there then, with other masks.
    """

    everyone = True
    fewest = FEWEST

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._alone_s: float | None = None
        """Since when there are too few."""

    def drop(self, name: str) -> Wish | None:
        """Have the step computed again: what others brought makes no sense without what a lost worker would have."""
        return BeginAgain(f"masks go on without {name}; the step under way begins again")

    def tick(self, now_s: float) -> Wish | None:
        """Give up where others do not come back."""
        if len(self._roster.workers) >= self.fewest:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = now_s
        elif now_s - self._alone_s > FORMING_S:
            there = ", ".join(sorted(self._roster.workers)) or "none"
            return Fail(
                f"masked sums are of two workers or more, and for {FORMING_S:.0f} s there was {there}",
                'a sum of one is its gradient: have more workers, or privacy.aggregation = "plain"',
            )
        return None


class RingKeepsDense(DenseKeepers):
    """The members of this generation's ring, and how far they are."""

    everyone = True
    num_savers = 1
    servers_clip = False

    def __init__(self, roster: Roster, decisions: Decisions, workers: Callable[[], Mapping[str, Worker]]) -> None:
        """Start without a ring; `workers` says who is there of those that form it."""
        self._roster, self._decisions, self._workers = roster, decisions, workers
        self._held: dict[str, tuple[int, int]] = {}
        """Era and steps of the parameters that each worker holds, as it said in this generation."""
        self._step = 0
        self._checkpoint_folder = ""
        self._expected: tuple[str, ...] = ()
        self._begun_s = 0.0
        self._members: tuple[str, ...] = ()
        self._joined: set[str] = set()
        self._summed: dict[str, float] = {}
        """By member that holds the step's sum: its squared norm."""
        self._came_s: list[float] = []
        """When those came who are not in the ring yet."""
        self._source = ""
        self._num_broken = 0

    @property
    def are_there(self) -> bool:
        """Say whether the ring is formed."""
        return bool(self._members) and self._joined >= set(self._members)

    @property
    def holders(self) -> tuple[str, ...]:
        """Return the members."""
        return self._members

    def stand(self, step: int, checkpoint_folder: str, holders: tuple[str, ...], now_s: float) -> None:
        """Begin a generation: the last one's ring is no more."""
        self._step, self._checkpoint_folder, self._expected, self._begun_s = step, checkpoint_folder, holders, now_s
        self._held.clear()
        self._members = ()
        self._joined.clear()
        self._summed.clear()
        self._came_s.clear()

    def join(self, worker: Worker, now_s: float) -> bool:
        """Take a worker in with the next ring, where there is one already."""
        if not self._members:
            return True
        self._came_s.append(now_s)
        return False

    def drop(self, name: str) -> Wish | None:
        """Have a ring formed without a member."""
        self._held.pop(name, None)
        if name in self._members:
            return BeginAgain(f"the ring goes on without {name}; the step under way begins again")
        return None

    def tick(self, now_s: float) -> Wish | None:
        """Form a ring, take in who came, give up a ring that does not come about."""
        if not self._members:
            return self._form(now_s)
        if not self.are_there and now_s - self._begun_s > FORMING_S:
            missing = ", ".join(sorted(set(self._members) - self._joined))
            return self._broken(f"{missing} did not join the ring in {FORMING_S:.0f} s")
        if self._came_s and (now_s - self._came_s[-1] > SETTLED_S or now_s - self._came_s[0] > MOST_WAITED_S):
            new = sorted(set(self._workers()) - set(self._members))
            if new:
                return BeginAgain(f"{', '.join(new)} joins the ring; the step under way begins again")
            self._came_s.clear()
        return None

    def _form(self, now_s: float) -> Wish | None:
        """Have all workers form a ring once each has said what it holds."""
        workers = self._workers()
        if not workers or not self._roster.may_begin(now_s) or not set(self._held) >= set(workers):
            return None
        right = (self._roster.era, self._step)
        keepers = sorted(name for name in workers if self._held[name] == right)
        if not keepers and not self._checkpoint_folder:
            if set(self._expected) - set(workers) and now_s - self._begun_s < GRACE_S:
                return None  # one who has them may still come
            return GoBack("no worker is left that holds the dense parameters")
        self._members = tuple(sorted(workers))
        self._begun_s = now_s
        self._source = keepers[0] if keepers else ""
        self._call(self._members[0], meeting="")
        return None

    def _call(self, name: str, *, meeting: str) -> None:
        worker = self._workers().get(name)
        if worker is not None:
            self._decisions.send(
                worker,
                JoinRing(
                    generation=self._roster.generation,
                    era=self._roster.era,
                    step=self._step,
                    members=self._members,
                    source=self._source,
                    meeting=meeting,
                    folder="" if self._source else self._checkpoint_folder,
                ),
            )

    def handle(self, message: Message, now_s: float) -> Wish | None:
        """Take in what a worker says."""
        if isinstance(message, Holds):
            self._held[message.name] = (message.era, message.version)
        elif isinstance(message, RingMeets):
            for name in self._members:
                self._call(name, meeting=message.meeting)
        elif isinstance(message, InRing):
            if message.version != self._step:
                return self._broken(f"{message.name} holds {message.version} steps instead of {self._step}")
            self._joined.add(message.name)
        elif isinstance(message, Reduced) and message.step == self._step:
            self._summed[message.name] = message.square
        elif isinstance(message, RingBroken):
            return self._broken(f"{message.name} could not reach the ring: {message.error}")
        return None

    def _broken(self, reason: str) -> Wish:
        """Have another ring formed, but not for ever."""
        self._num_broken += 1
        if self._num_broken > MOST_BROKEN:
            return Fail(
                f"{self._num_broken} rings in a row came to nothing; at last {reason}",
                'see the logs of the workers; with dense = "ps" the servers keep dense parameters',
            )
        return BeginAgain(reason)

    def has_summed(self, step: int) -> bool:
        """Say whether every member holds the sum of the step's gradients."""
        return self.are_there and step == self._step and self._summed.keys() >= set(self._members)

    def norm_square(self) -> float:
        """Return what the first member found: all hold the same sum."""
        return self._summed[self._members[0]]

    def apply(self, step: int, scale: float, factor: float) -> None:
        """Have every member apply the sum."""
        self._step = step + 1
        self._summed.clear()
        self._num_broken = 0
        self._tell_all(Apply(generation=self._roster.generation, step=step, scale=scale, factor=factor))

    def _tell_all(self, message: Message) -> None:
        """Send a message to the members that are there."""
        present = (self._workers().get(name) for name in self._members)
        self._decisions.send_all([worker for worker in present if worker is not None], message)

    def save(self, number: int, step: int, folder: str) -> None:
        """Have a member write the parameters."""
        worker = self._workers().get(self._members[0])
        if worker is not None:
            generation = self._roster.generation
            self._decisions.send(worker, SaveDense(generation=generation, number=number, step=step, folder=folder))


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
    return lambda: {name: roster.stage_workers[name] for name in roster.staff[stage - 1]}


def dense_keepers(blueprint: Blueprint, roster: Roster, decisions: Decisions) -> DenseKeepers:
    """Return those that the run asks for."""
    if blueprint.run.privacy.aggregation == "masked":
        return MasksWaitForAll(roster)
    if blueprint.run.training.dense != "ring":
        return NormsWaitForAll() if blueprint.run.training.batch_norm == "global" else DenseKeepers()
    if blueprint.stages:
        return StagesKeepDense(blueprint, roster, decisions)
    return RingKeepsDense(roster, decisions, lambda: roster.workers)
