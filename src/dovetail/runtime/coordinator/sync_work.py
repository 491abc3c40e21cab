"""Work in `sync`: steps one after the other, the next one handed out while the last is being finished."""

from __future__ import annotations

import math

from dovetail.models.schedules import make_schedule
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.dense_keepers import dense_keepers
from dovetail.runtime.coordinator.journal import CommitLine, Past, StartLine
from dovetail.runtime.coordinator.membership import Member, Roster, Worker
from dovetail.runtime.coordinator.steps import Step
from dovetail.runtime.coordinator.task_scheduler import TaskScheduler
from dovetail.runtime.coordinator.work import BeginAgain, Finish, GoBack, Pause, Wish
from dovetail.runtime.dense.optimizer import clipped_scale
from dovetail.runtime.figures import Counted
from dovetail.runtime.messages import Accepted, Commit, Committed, Done, GaveBack, Message, More, Norm, NormIs, RanOut

REPEAT_S = 2.0
"""How long a server may take to apply a step before it is told again: a connection may have broken meanwhile."""


class SyncWork:
    """Commits each step when every server has all of it."""

    def __init__(self, blueprint: Blueprint, roster: Roster, decisions: Decisions) -> None:
        self._roster, self._decisions = roster, decisions
        self._samples = blueprint.samples
        self._averages = blueprint.run.training.reduction == "mean"
        self._drawn = None if blueprint.private is None else blueprint.private.batch
        """Samples that a step of a private run draws on average: how many it drew decides nothing."""
        schedule = blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._keepers = dense_keepers(blueprint, roster, decisions)
        self._clip_norm = blueprint.run.optimizer.clip_norm
        self._scheduler = TaskScheduler(
            blueprint, roster, decisions, everyone=self._keepers.everyone, fewest=self._keepers.fewest
        )
        self.position = 0
        self.wish: Wish | None = None
        self._checkpoint_folder = ""
        self._holders: tuple[str, ...] = ()
        self._commit_told: Commit | None = None
        self._last_commit: CommitLine | None = None
        self._ring_told: tuple[str, ...] = ()
        """Who the journal says holds the dense parameters in this generation."""
        self.next_task = 0

    # -- where it stands -----------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Return how many steps count."""
        return self._scheduler.step

    @property
    def samples_done(self) -> int:
        """Return how many samples count."""
        return self.position

    @property
    def num_savers(self) -> int:
        """Return how many write a part of a checkpoint."""
        return self._roster.num_servers + self._keepers.num_savers

    @property
    def can_save(self) -> bool:
        """Say whether no commit is on its way: servers keep gradients of a step under way apart."""
        step = self._scheduler.current
        return self._keepers.are_there and (step is None or step.committed is None)

    def start(self, manifest: RunManifest) -> None:
        """Stand where a checkpoint stands."""
        self._stand(manifest.step, manifest.position, holders=())

    def stands_at(self, folder: str) -> None:
        """Take dense parameters of a ring that nobody holds from a checkpoint's folder, which is of this very step."""
        self._checkpoint_folder = folder

    def go_on(self, past: Past) -> None:
        """Stand where the journal ends."""
        self._stand(past.step, past.position, holders=past.holders)

    def _stand(self, step: int, position: int, holders: tuple[str, ...]) -> None:
        """Forget what is under way."""
        self._scheduler.stand(step, position)
        self.position, self._holders, self._checkpoint_folder = position, holders, ""
        self._ring_told = ()

    def as_start(self) -> StartLine:
        """Return where it stands, for the journal; a commit that was decided stands."""
        step = self._scheduler.current
        decided = step is not None and step.committed is not None
        return StartLine(
            generation=self._roster.generation,
            era=self._roster.era,
            step=self.step + decided,
            position=self.position + (step.num_positions if step is not None and decided else 0),
            holders=self._keepers.holders,
        )

    @property
    def decided(self) -> CommitLine | None:
        """Return the commit that is on its way, where one is."""
        step = self._scheduler.current
        return self._last_commit if step is not None and step.committed is not None else None

    def manifest(self) -> RunManifest:
        """Return the manifest of a checkpoint of how things are now."""
        return RunManifest(
            step=self.step,
            position=self.position,
            dense_steps=self.step,
            num_servers=self._roster.num_servers,
            samples=self._samples,
        )

    def save_dense(self, number: int, step: int, folder: str) -> None:
        """Have dense parameters written that servers do not keep."""
        self._keepers.save(number, step, folder)

    # -- who is there --------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Take in everyone who is there."""
        self._keepers.stand(self.step, self._checkpoint_folder, self._holders, now_s)
        for name in self._roster.workers:
            self._scheduler.join(name)

    def join(self, worker: Worker, now_s: float) -> None:
        """Take in a worker that came later."""
        if self._keepers.join(worker, now_s):
            self._scheduler.join(worker.name)

    def join_stage(self, worker: Worker, now_s: float) -> None:
        """Take in a worker of a later stage that came later."""
        self._keepers.join(worker, now_s)

    def drop(self, name: str, now_s: float) -> None:
        """Have others do what a lost worker held."""
        if not self._scheduler.drop(name):
            self._want(BeginAgain(f"servers have other positions of a task than {name} said"))
        self._want(self._keepers.drop(name))

    def _want(self, wish: Wish | None) -> None:
        """Leave a wish; that to go back comes first."""
        if wish is not None and (self.wish is None or isinstance(wish, GoBack)):
            self.wish = wish

    # -- what happens --------------------------------------------------------------------------------------------------

    def due_s(self) -> float:
        """Return when someone has to be answered who was kept waiting on purpose."""
        return self._scheduler.due_s()

    def tick(self, now_s: float) -> None:
        """Do what is due by time."""
        self._want(self._keepers.tick(now_s))
        self._scheduler.find_late(now_s)
        self._repeat_commit(now_s)

    def handle(self, member: Member, message: Message, now_s: float) -> None:
        """Take in a message of a worker or server."""
        if isinstance(message, Accepted):
            step = self._scheduler.step_of(message.step)
            if step is not None and not step.accept(message):
                self._want(BeginAgain(f"a worker was not told of all of task {message.task} of step {step.number}"))
        elif isinstance(message, Committed):
            self._committed(message, now_s)
        elif isinstance(message, NormIs):
            step = self._scheduler.step_of(message.step)
            if step is not None:
                step.norms[message.name] = message.square
        elif isinstance(member, Worker):
            self._from_worker(member, message, now_s)

    def _from_worker(self, worker: Worker, message: Message, now_s: float) -> None:
        self._scheduler.goes_on(worker.name)
        if isinstance(message, More):
            self._scheduler.asks(worker, message, now_s)
        elif isinstance(message, RanOut):
            self._scheduler.ran_out(worker, now_s)
        elif isinstance(message, GaveBack):
            if not self._scheduler.gave_back(worker, message, now_s):
                self._want(BeginAgain(f"{worker.name} gave back what it did not have, of step {message.step}"))
        elif not isinstance(message, Done):
            self._want(self._keepers.handle(message, now_s))

    def advance(self, now_s: float, pause: Pause) -> None:
        """Count what is whole, hand out what is left."""
        if self.position >= self._scheduler.total or self._scheduler.is_over:
            self._want(Finish())
        elif self._keepers.are_there and self.wish is None:
            self._note_ring()
            self._scheduler.answer_due(now_s)
            if pause is not Pause.TO_STOP:  # what comes after the last checkpoint would be lost
                self._try_commit(now_s)
            self._scheduler.advance(now_s)

    def _note_ring(self) -> None:
        """Have it in the journal who holds dense parameters: a coordinator that comes back waits for them."""
        if self._keepers.holders != self._ring_told:
            self._ring_told = self._keepers.holders
            self._decisions.write(ring=self._ring_told)

    # -- commits -------------------------------------------------------------------------------------------------------

    def _try_commit(self, now_s: float) -> None:
        """Commit the step where every server has all of it."""
        step = self._scheduler.current
        if step is None or step.committed is not None or not step.is_whole(self._roster.num_servers):
            return
        if not self._keepers.has_summed(step.number):
            return
        scale = self._scale(step)
        if self._clip_norm is None:
            self._commit(step, scale, scale, now_s)
        elif not self._keepers.servers_clip:
            square = self._keepers.norm_square()
            self._commit(step, scale, clipped_scale(scale, square, self._clip_norm), now_s)
        elif len(step.norms) >= self._roster.num_servers:
            self._commit(step, scale, clipped_scale(scale, sum(step.norms.values()), self._clip_norm), now_s)
        elif step.told_s is None or now_s - step.told_s >= REPEAT_S:
            step.told_s = now_s
            self._send_servers(Norm(generation=self._roster.generation, step=step.number))

    def _scale(self, step: Step) -> float:
        """Return what gradients are multiplied by."""
        return 1.0 / (self._drawn or max(1, step.samples)) if self._averages else 1.0

    def _commit(self, step: Step, scale: float, dense_scale: float, now_s: float) -> None:
        """Decide that a step counts: first in the journal, then everywhere."""
        factor = self._schedule(step.number)
        position = self.position + step.num_positions
        self._last_commit = CommitLine(
            step=step.number, position=position, scale=scale, dense_scale=dense_scale, factor=factor
        )
        self._decisions.write(commit=self._last_commit)
        step.committed, step.told_s = set(), now_s
        self._commit_told = Commit(
            generation=self._roster.generation,
            step=step.number,
            scale=scale,
            dense_scale=dense_scale,
            factor=factor,
        )
        self._send_servers(self._commit_told)
        self._keepers.apply(step.number, dense_scale, factor)

    def _send_servers(self, message: Message) -> None:
        self._decisions.send_all(self._roster.servers.values(), message)

    def _repeat_commit(self, now_s: float) -> None:
        """Tell servers again of a commit that they have not confirmed; none applies it twice."""
        step = self._scheduler.current
        if step is None or step.committed is None or step.told_s is None or now_s - step.told_s < REPEAT_S:
            return
        step.told_s = now_s
        if self._commit_told is not None:
            late = [server for name, server in self._roster.servers.items() if name not in step.committed]
            self._decisions.send_all(late, self._commit_told)

    def _committed(self, message: Committed, now_s: float) -> None:
        """Go on to the next step once every server has applied this one."""
        step = self._scheduler.current
        if step is None or step.committed is None or message.step != step.number:
            return
        step.committed.add(message.name)
        step.norms[message.name] = message.square
        if len(step.committed) < self._roster.num_servers:
            return
        scale = self._scale(step)
        self.position += step.num_positions
        self._decisions.count(
            Counted(
                step=step.number,
                samples=step.samples,
                loss=step.loss,
                seconds=now_s - step.begun_s,
                by_worker=step.samples_by_worker,
                gradient_norm=scale * math.sqrt(sum(step.norms.values())),
            )
        )
        self._scheduler.next_step(now_s)
