"""A run whose rows lie with its workers: processes of one generation, which begin, go back and end together.

Who dies takes its part of the rows along. So the run goes back as a whole: all processes are ended, and fresh ones take
up the newest checkpoint. There is never a mixture of old and new rows.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from dovetail.data.source import Source
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.clocks import Deadline, is_stuck
from dovetail.runtime.coordinator.failure_detector import LEAST_S, PATIENCES
from dovetail.runtime.coordinator.membership import STARTING_S
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import ROWS, log_of
from dovetail.runtime.launch.child import MOST, Child
from dovetail.runtime.launch.watched_run import LOOK_S, WatchedRun
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.lock import RunLock
from dovetail.runtime.trainer.sharded.line import (
    BEAT_S,
    GroupLost,
    Told,
    Word,
    WorkerBeat,
    order_to_stop,
    socket_of,
    word_in,
)

GRACE_S = 5.0
"""How long it is waited for who died where others say only that somebody did."""
LOADS_S = 3600.0
"""How long workers may take to load their rows."""

ENDED_WELL = "exit status 0"


class Watched:
    """A worker as its launcher sees it."""

    def __init__(self, child: Child, patience_s: float, now_s: float) -> None:
        self.child, self._patience_s = child, patience_s
        self.step = -1
        self.has_begun = False
        self._heard_s = self._moved_s = now_s
        self._silence = Deadline(floor_s=max(patience_s, 4 * BEAT_S), first_s=STARTING_S)
        self._stuck_s = self._longest_s = 0.0

    def hear(self, beat: WorkerBeat, now_s: float) -> None:
        """Take in a sign of life."""
        self.has_begun = True
        self._silence.add(now_s - self._heard_s)
        self._heard_s = now_s
        if beat.step != self.step or beat.stuck_s > 2 * LOOK_S:
            self._moved_s = now_s
        self.step, self._stuck_s, self._longest_s = beat.step, beat.stuck_s, beat.longest_s

    def fault(self, now_s: float) -> str | None:
        """Return what is wrong with it, where something is."""
        if (how := self.child.how_it_ended()) is not None:
            return how
        if now_s - self._heard_s > self._silence.limit_s:
            return f"silent for {now_s - self._heard_s:.1f} s"
        if is_stuck(self._stuck_s, self._longest_s, self._patience_s):
            return f"alive, but at the same thing for {self._stuck_s:.1f} s"
        return None

    def rests(self, now_s: float) -> bool:
        """Say whether it has done nothing but wait for others for far too long."""
        limit_s = max(LEAST_S, PATIENCES * self._patience_s) if self.step >= 0 else LOADS_S
        return now_s - self._moved_s > limit_s


class ShardedRun(WatchedRun):
    """Workers that are children of this process.

    with ShardedRun(folder) as run:
        run.wait()
    """

    _ends_in_s = 30.0

    def __init__(
        self,
        folder: Path,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        lock: RunLock | None = None,
    ) -> None:
        """Get ready to start what `prepare` made."""
        super().__init__(folder, model=model, source=source, lock=lock)
        self._names = [name for name, _ in self.blueprint.run.each_worker()]
        self.generation = 0
        self._listener: Listener | None = None
        self._lines: dict[Connection[Any, Any], str] = {}
        self._watched: dict[str, Watched] = {}
        self._went_back: Counter[str] = Counter()
        self._in_vain = 0
        """Generations in a row that came to no step."""
        self._from_step = -1
        """Where this one began."""
        self._lost: tuple[str, str, float] | None = None
        """Who said first that others are gone, what, and when."""
        self._untold: list[str] = []

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_all(self, lock: RunLock) -> None:
        self._start_generation()

    def _start_generation(self) -> None:
        """Start a generation: who listens first, then everyone."""
        self._listener = Listener(
            str(socket_of(self.blueprint.private_folder, self.generation)), family="AF_UNIX", backlog=len(self._names)
        )
        now_s = self._clock.now()
        for name in self._names:
            handle = self._starter.start_sharded(name, self.generation)
            self.children[name] = Child(name, handle, is_role=False, starts=self.generation + 1)
            self._watched[name] = Watched(self.children[name], self.blueprint.run.faults.patience_s, now_s)
            self.sandbox.started(name, handle.pid)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _news(self) -> list[Report]:
        return self.look()

    def look(self, timeout_s: float = LOOK_S) -> list[Report]:
        """See to the processes, and return news of the run where there are any."""
        found = [self._with_events(each.report) for each in self._heard(timeout_s) if isinstance(each, Told)]
        if found and found[-1].state == "done":
            return found
        now_s = self._clock.now()
        if (fault := self._fault(now_s)) is not None:
            self._go_back(*fault)
            if self.report is not None:
                found.append(self._with_events(msgspec.structs.replace(self.report, state="going back", events=())))
        return found

    def _heard(self, timeout_s: float) -> list[Word]:
        """Return what workers have said."""
        if self._listener is None:
            raise TrainingError("the run is not started", hint="use it in a `with` block")
        door: Any = self._listener._listener._socket  # type: ignore[attr-defined]  # Python gives no other way to wait
        words: list[Word] = []
        for ready in wait([door, *self._lines], timeout_s):
            if ready is door:
                line = self._listener.accept()
                self._lines[line] = ""
            else:
                words += self._words_of(ready)  # type: ignore[arg-type]
        return words

    def _words_of(self, line: Connection[Any, Any]) -> list[Word]:
        """Return all that a worker has said; one that hung up is heard no more."""
        words: list[Word] = []
        try:
            while line.poll():
                word = word_in(line.recv_bytes())
                self._take_in(word)
                if isinstance(word, WorkerBeat):
                    self._lines[line] = word.name
                words.append(word)
        except (OSError, EOFError):
            self._lines.pop(line, None)
            line.close()
        return words

    def _take_in(self, word: Word) -> None:
        now_s = self._clock.now()
        if isinstance(word, WorkerBeat):
            self._watched[word.name].hear(word, now_s)
        elif isinstance(word, Told):
            self.report = word.report
            self._in_vain = 0 if word.report.step > self._from_step else self._in_vain
        elif isinstance(word, GroupLost):
            self._lost = self._lost or (word.name, word.error, now_s)
        else:
            raise TrainingError(f"{word.name}: {word.error}", hint=word.hint)

    def _fault(self, now_s: float) -> tuple[list[str], str] | None:
        """Return who is to blame that the run cannot go on, and why; None where it can."""
        found = {name: fault for name, each in self._watched.items() if (fault := each.fault(now_s)) is not None}
        if len(found) < len(self._watched):  # who ended well waits for the first worker's last word
            found = {name: how for name, how in found.items() if how != ENDED_WELL}
        # Who lost the others ends as well: it is to blame only where nobody else is.
        blamed = {name: how for name, how in found.items() if how != "exit status 1"}
        if blamed:
            name, how = next(iter(blamed.items()))
            return list(blamed), f"{name} {_said(how)}"
        if self._lost is not None and now_s - self._lost[2] > GRACE_S:
            return [self._lost[0]], f"{self._lost[0]} lost the others ({self._lost[1]})"
        if found and self._lost is None:
            time.sleep(LOOK_S)
            self._heard(0.0)  # its last words may be on their way
            if self._lost is None:
                name = next(iter(found))
                raise TrainingError(f"{name} ended: {found[name]}", hint=f"its log is {log_of(self.folder, name)}")
        if not found and all(each.rests(now_s) for each in self._watched.values()):
            return self._names, "every worker waits for the others"
        return None

    def _go_back(self, names: list[str], why: str) -> None:
        """End this generation, and start the next from the newest checkpoint."""
        faults = self.blueprint.run.faults
        self._went_back.update(names)
        self._in_vain += 1
        self._end_all(failed=True)
        most = max(self._went_back.values())
        if not faults.restart_workers or most > faults.restarts:
            raise TrainingError(
                f"{why}, and is not started again", hint=f"go on with: dovetail train --resume {self.folder}"
            )
        if self._in_vain > MOST:
            raise TrainingError(
                f"{why}: {self._in_vain} times in a row before a step was done",
                hint=f"its log is {log_of(self.folder, names[0])}; what came before the log is above",
            )
        step = checkpoints.RunManifest.read(checkpoints.newest(self.folder)).step
        lost = max(0, (self.report.step if self.report is not None else 0) - step)
        self.generation += 1
        self._from_step = step
        self._tell(f"{why}: the run goes back to the checkpoint of step {step:,}, {lost:,} steps are done again")
        self._start_generation()

    def _tell(self, event: str) -> None:
        self.events.append(event)
        self._untold.append(event)

    def _with_events(self, report: Report) -> Report:
        """Return a report with what this launcher saw."""
        self.events.extend(report.events)
        events, self._untold = (*self._untold, *report.events), []
        return msgspec.structs.replace(report, generation=self.generation, events=events)

    # -- ending --------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Have a checkpoint kept as soon as one can be cut, and the run end then: `wait` returns."""
        for line, name in list(self._lines.items()):
            if name == self._names[0]:
                with suppress(OSError):
                    line.send_bytes(order_to_stop())

    def _end_all(self, *, failed: bool) -> None:
        """End all processes of this generation, and remove what only they needed."""
        for child in self.children.values():
            if child.how_it_ended() is None:
                child.handle.kill()
        for child in self.children.values():
            child.end()
        for line in self._lines:
            line.close()
        self._lines.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._lost = None
        shutil.rmtree(self.folder / ROWS, ignore_errors=True)


def _said(how: str) -> str:
    """Return what happened to a worker, as a part of a sentence."""
    return how if how.startswith(("silent", "alive")) else f"died ({how})"
