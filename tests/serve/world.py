"""The daemon's controller and its state, and all else made up: processes, clocks, disks, a policy that wants anything.

The state is a real file, and what jobs and daemon tell each other by files they do. A walk does things in an order that
is drawn: whatever happens, no job is lost, none runs twice at once, no worker is given twice, nobody is ended before
the grace it was promised, who counts as told was told, and once all is calm again every job comes to its end.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from dovetail.errors import DovetailError
from dovetail.runtime.folder import SIZE, TEAM, Present, Size
from dovetail.serve.controller import Controller
from dovetail.serve.launcher import FoundProcess, Heard, JobAttempt, NotNowError
from dovetail.serve.progress import RUN
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobRecord, JobStore
from dovetail.serve.submission import Submission
from dovetail.serve.wishes import Wishes
from dovetail.spec.workload import NodeGroup

NODES = (NodeGroup(type="cpu", workers=4), NodeGroup(type="gpu", workers=2))
GRACE_S = 5.0
TRAINS = {"model": {"name": "ctr-dnn"}}
ERRORS = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


class Killed(BaseException):
    """The daemon was killed here."""


class Broken(BaseException):
    """Something does not hold that must; no `except Exception` of the daemon's swallows it."""


def must(holds: object, what: str) -> None:
    """Stop the walk where something does not hold."""
    if not holds:
        raise Broken(what)


@dataclass
class MadeUpClock:
    """The daemon's time, and how far the time of day is from it."""

    now: float = 1e9
    ahead: float = 0.0

    def now_s(self) -> float:
        return self.now

    def day_ahead_s(self) -> float:
        return self.ahead


@dataclass
class MadeUpAttempt:
    """An attempt as the operating system has it."""

    task: JobAttempt
    type: str
    workers: int
    """What it was started with; a run that trains has as many as its folder says."""
    trains: bool
    has_record: bool = False
    """Whether its keeper has said who it is."""
    leads: bool = True
    """Whether its own process lives."""
    others: int = 0
    """Processes it has left behind."""
    code: int | None = None
    is_written: bool = False
    ignores: bool = False
    """Whether it drops SIGTERM for now."""
    was_asked: bool = False
    asked_s: float | None = None
    alone_s: float | None = None
    """Since when its own process is gone and others are not."""

    @property
    def lives(self) -> bool:
        return self.leads or self.others > 0

    @property
    def held(self) -> int:
        """How many workers it has."""
        if not self.lives:
            return 0
        team = self.task.folder / RUN / TEAM
        if self.trains and self.has_record and team.exists():
            return len(msgspec.json.decode(team.read_bytes(), type=Present).workers)
        return self.workers


class World:
    """A daemon, and all that it deals with."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw, self.folder = Random(seed), folder
        self.clock = MadeUpClock()
        self.store = WalkedStore(folder, self)
        self.settings = DaemonSettings(nodes=NODES, grace_s=GRACE_S, round_s=30.0)
        self.attempts: dict[str, list[MadeUpAttempt]] = {}
        self.taken: list[str] = []
        """Jobs that somebody was told are there."""
        self.complete: set[str] = set()
        """Programs that came to their end by themselves, and whose end was written down."""
        self.is_full = False
        self.error: int | None = None
        """What every look at a process ends with."""
        self.may_be_killed = False
        self.is_calm = False
        self.kills = 0
        self.controller: Controller = None  # type: ignore[assignment]
        self._begin()

    def _begin(self) -> None:
        if self.controller is not None:
            self.controller.close()
        self.controller = Controller(self.folder, self.store, self, self.wishes, self.settings)

    # -- faults --------------------------------------------------------------------------------------------------------

    def maybe_killed(self) -> None:
        """Be a moment at which the daemon may be killed."""
        if self.may_be_killed and self.draw.random() < 0.04:
            raise Killed

    def maybe_fails(self, *, often: float = 0.05) -> None:
        """Be a system call that may fail."""
        if self.error is not None or (not self.is_calm and self.draw.random() < often):
            number = self.error or self.draw.choice(ERRORS)
            raise OSError(number, os.strerror(number))

    # -- the launcher --------------------------------------------------------------------------------------------------

    def start(self, task: JobAttempt) -> None:
        self.maybe_killed()
        job = self.store.job(task.job)
        must((job.state, job.attempt) == ("running", task.attempt), "what is started was written down first")
        must(task.job not in self.complete, f"{task.job} was done, and is started again")
        if any(each.lives for each in self.attempts.get(task.job, ())):
            raise NotNowError("its lock is held", hint="")
        try:
            self.maybe_fails(often=0.15)
        except OSError as error:
            raise NotNowError(str(error), hint="") from None
        if not self.is_calm and self.draw.random() < 0.02:
            raise DovetailError("there is no such folder", hint="")
        assert job.type is not None
        trains = job.submission.run is not None
        attempt = MadeUpAttempt(task, job.type, job.workers, trains)
        self.attempts.setdefault(task.job, []).append(attempt)
        self.maybe_killed()

    def find(self, task: JobAttempt) -> FoundProcess:
        try:
            self.maybe_fails()
        except OSError as error:
            return FoundProcess(state="unknown", detail=str(error))
        attempt = self.attempt_of(task)
        if attempt is None:
            return FoundProcess(state="never")
        if attempt.leads:
            return FoundProcess(state="running")
        if attempt.others:
            return FoundProcess(state="left")
        if attempt.is_written:
            return FoundProcess(state="ended", code=attempt.code)
        return FoundProcess(state="lost" if attempt.has_record else "never")

    def ask_to_stop(self, task: JobAttempt) -> Heard:
        self.maybe_fails()
        self.maybe_killed()
        attempt = self.attempt_of(task)
        if attempt is None or not attempt.has_record:
            return "nobody"
        attempt.asked_s = self.clock.now if attempt.asked_s is None else attempt.asked_s
        if attempt.leads and attempt.ignores:
            return "ignored"
        attempt.was_asked = True
        return "told"

    def end(self, task: JobAttempt) -> None:
        self.maybe_fails()
        self.maybe_killed()
        attempt = self.attempt_of(task)
        if attempt is None:
            return
        since = [moment for moment in (attempt.asked_s, attempt.alone_s) if moment is not None]
        if attempt.has_record:
            must(since, "nobody is ended who was not asked")
            must(self.clock.now - min(since) >= GRACE_S, "everybody has the grace that was promised")
        self.stops(attempt, code=-9)
        attempt.others = 0

    def attempt_of(self, task: JobAttempt) -> MadeUpAttempt | None:
        found = [each for each in self.attempts.get(task.job, ()) if each.task.attempt == task.attempt]
        return found[0] if found else None

    # -- processes -----------------------------------------------------------------------------------------------------

    def living(self) -> list[MadeUpAttempt]:
        return [each for all_ in self.attempts.values() for each in all_ if each.lives]

    def stops(self, attempt: MadeUpAttempt, *, code: int | None, leaves: int = 0) -> None:
        """End an attempt's own process; without a code its keeper goes with it, and writes nothing."""
        if not attempt.leads:
            return
        attempt.leads, attempt.code, attempt.others = False, code, attempt.others + leaves
        attempt.alone_s = self.clock.now if attempt.others else None
        attempt.is_written = code is not None and attempt.has_record
        if code == 0 and attempt.is_written and not attempt.trains and attempt.asked_s is None:
            self.complete.add(attempt.task.job)

    def goes_on(self, attempt: MadeUpAttempt) -> None:
        """Have a process do what it would next: say who it is, take the size it is asked for, report."""
        if not attempt.has_record:
            attempt.has_record = True
            for name in (SIZE, TEAM):  # of the attempt before
                (attempt.task.folder / RUN / name).unlink(missing_ok=True)
            return
        if not attempt.leads:
            return
        run = attempt.task.folder / RUN
        if attempt.trains:
            run.mkdir(parents=True, exist_ok=True)
            wanted = attempt.workers
            if (run / SIZE).exists():
                wanted = msgspec.json.decode((run / SIZE).read_bytes(), type=Size).workers
            workers = tuple(f"w{n}" for n in range(wanted))
            since_s = self.clock.now + self.clock.ahead
            team = Present(wanted=wanted, workers=workers, since_s=since_s)
            (run / TEAM).write_bytes(msgspec.json.encode(team))

    # -- the policy ----------------------------------------------------------------------------------------------------

    def wishes(self, jobs: list[JobRecord], *_: Any, taken: dict[str, int]) -> Wishes:
        """Want anything that fits; when all is calm, that whoever waits gets a worker."""
        free = {name: count - taken.get(name, 0) for name, count in self.settings.capacity.items()}
        stops, gives = [], []
        for job in jobs:
            if job.state == "running" and job.type is not None:
                if not self.is_calm and self.draw.random() < 0.2:
                    stops.append(job)
                    continue
                free[job.type] -= job.workers
        for job in jobs:
            if job in stops or (job.state == "running" and self.is_calm):
                continue
            kind = self.draw.choice([*free]) if job.type is None or self.draw.random() < 0.2 else job.type
            if self.is_calm:
                kind = max(free, key=lambda name: free[name])
            room = free[kind] + (job.workers if job.type == kind else 0)
            if room < 1 or (job.state == "running" and self.draw.random() < 0.7):
                continue
            workers = 1 if self.is_calm else self.draw.randint(1, room)
            if job.type is not None:
                free[job.type] += job.workers
            free[kind] -= workers
            if (kind, workers) != (job.type, job.workers):
                gives.append((job, kind, workers))
        gives.sort(key=lambda give: give[2] - give[0].workers)
        return Wishes(stops=tuple(stops), gives=tuple(gives))

    # -- what can happen -----------------------------------------------------------------------------------------------

    def turn(self, *, may_be_killed: bool = False) -> None:
        """Have the daemon turn once; one that is killed on the way is started again."""
        self.may_be_killed = may_be_killed
        try:
            self.controller.turn()
        except Killed:
            self.kills += 1
            self._begin()
        except (DovetailError, sqlite3.Error, OSError):
            self.controller.wake()  # as `run` does: a full disk, say
        finally:
            self.may_be_killed = False
        self.check()

    def happen(self) -> None:
        """Do something that is drawn."""
        living = self.living()
        attempt = self.draw.choice(living) if living else None
        things = ["submit", "turn", "turn", "turn", "killed turn", "wait", "cancel", "pin", "drain", "clock", "disk"]
        things += ["errors", "restart"] + (["process"] * 5 if attempt is not None else [])
        match self.draw.choice(things):
            case "submit":
                self.submit()
            case "turn":
                self.turn()
            case "killed turn":
                self.turn(may_be_killed=True)
            case "wait":
                self.clock.now += self.draw.choice([0.2, 1.0, 6.0, 70.0])
            case "cancel" | "pin" as what:
                self.ask(what)
            case "drain":
                self.try_to(lambda: self.store.set("drain", self.draw.choice([None, None, "on", "now"])))
                self.controller.wake()
            case "clock":
                self.clock.ahead += self.draw.choice([3600.0, -3600.0, 1e7, -1e7])
            case "disk":
                self.is_full = not self.is_full
            case "errors":
                self.error = None if self.error is not None else self.draw.choice(ERRORS)
            case "restart":
                self._begin()
            case _:
                assert attempt is not None
                self.do_to(attempt)
        self.check()

    def do_to(self, attempt: MadeUpAttempt) -> None:
        """Have something happen to a process."""
        match self.draw.choice(
            ["on", "on", "on", "ends", "fails", "killed", "all killed", "leaves", "ignores", "heeds"]
        ):
            case "on":
                self.goes_on(attempt)
            case "ends" if attempt.has_record:
                self.stops(attempt, code=0)
            case "fails" if attempt.has_record:
                self.stops(attempt, code=1)
            case "killed" if attempt.has_record:
                self.stops(attempt, code=-9)
            case "all killed":
                self.stops(attempt, code=None)
                attempt.others = 0
            case "leaves" if attempt.has_record:
                self.stops(attempt, code=0, leaves=1)
            case "ignores":
                attempt.ignores = not attempt.ignores
            case "heeds" if attempt.was_asked:
                self.stops(attempt, code=0)
            case _:
                pass

    def submit(self) -> None:
        trains = self.draw.random() < 0.4
        facts: dict[str, Any] = {"run": TRAINS} if trains else {"command": ["true"]}
        try:
            job, _ = self.store.submit(Submission(name="a", **facts))
        except DovetailError:
            return
        self.taken.append(job.id)
        self.controller.wake()

    def ask(self, what: str) -> None:
        if not self.taken:
            return
        job = self.draw.choice(self.taken)
        if what == "cancel":
            self.try_to(lambda: self.store.cancel(job))
        else:
            self.try_to(lambda: self.store.pin(job, self.draw.choice([None, 1, 2])))
        self.controller.wake()

    def try_to(self, do: Any) -> None:
        try:
            do()
        except DovetailError:
            return

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        jobs = {job.id: job for job in self.store.jobs()}
        must(set(self.taken) <= jobs.keys(), "no job is lost")
        held: dict[str, int] = {}
        for attempts in self.attempts.values():
            living = [each for each in attempts if each.lives]
            must(len(living) <= 1, "none runs twice at once")
            for each in living:
                held[each.type] = held.get(each.type, 0) + each.held
        for name, count in held.items():
            must(count <= self.settings.capacity[name], f"{count} {name} are held")
        units = [(job.type, unit) for job in jobs.values() if job.state == "running" for unit in job.units]
        must(len(units) == len(set(units)), "no worker is given twice")
        for each in self.living():
            job = jobs[each.task.job]
            must((job.state, job.attempt) == ("running", each.task.attempt), "whoever lives is known to")
            if job.told_s is not None:
                must(each.asked_s is not None, "who counts as told was told")

    def calm_down(self, most_turns: int = 400) -> None:
        """Have nothing more go wrong: every job must come to its end."""
        self.is_calm, self.is_full, self.error = True, False, None
        self.store.set("drain", None)
        self.controller.wake()
        for _ in range(most_turns):
            if all(not job.is_open for job in self.store.jobs()):
                break
            for attempt in self.living():
                self.goes_on(attempt)
                is_over = attempt.has_record and not attempt.ignores and self.draw.random() < 0.3
                if attempt.was_asked or is_over:
                    self.stops(attempt, code=0)
                elif attempt.leads and attempt.ignores:
                    self.try_to(lambda each=attempt: self.store.cancel(each.task.job))  # it would never end
            self.clock.now += 1.0
            self.turn()
        states = {job.id: job.state for job in self.store.jobs()}
        must(set(states.values()) <= {"done", "failed", "cancelled"}, f"the queue stands: {states}")
        must(not self.living(), "nobody is left running")
        for job in self.complete:
            must(states[job] in ("done", "cancelled"), f"{job} was done, and is {states[job]}")


class WalkedStore(JobStore):
    """The state, in a file of its own; writes fail where the disk is full, and daemons die between them."""

    def __init__(self, folder: Path, world: World) -> None:
        self._world: World | None = None
        super().__init__(folder / "state.sqlite")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=MEMORY")
        for table in ("jobs", "events", "speeds", "sizes", "changes", "settings"):
            self._db.execute(f"DELETE FROM {table}")
        self.clock = world.clock  # type: ignore[assignment]
        self._world = world

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        if self._world is None:
            with super().change() as db:
                yield db
            return
        self._world.maybe_killed()
        if self._world.is_full:
            raise DovetailError("the state cannot be written: database or disk is full", hint="see the disk")
        with super().change() as db:
            yield db
        self._world.maybe_killed()


def walk(folder: Path, seed: int, steps: int = 40) -> World:
    """Go one walk in a folder, which is emptied first; return the world it ended in."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    world = World(folder, seed)
    try:
        for _ in range(steps):
            world.happen()
        world.calm_down()
    finally:
        world.controller.close()
        world.store.close()
    return world
