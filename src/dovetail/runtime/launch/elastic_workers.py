"""How many workers a run has while it goes on: as many as a file in its folder asks for.

Whoever schedules runs writes `size.json`, and the run's launcher starts workers or has some leave; the others go on.
`team.json` says who works. A worker that is asked to leave hands its tasks to others: every sample still counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from os import environ
from pathlib import Path

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.folder import KEYS, SIZE, TEAM, Present, Size
from dovetail.runtime.launch.child import Child
from dovetail.runtime.launch.entry import EXTRA
from dovetail.runtime.messages import Report
from dovetail.transport import drop_keys, make_keys

LEAVE_S = 10.0
"""How long it may take to leave before it is ended."""
GPUS = "DOVETAIL_GPUS"
"""The variable that names the GPU of each worker at the start, with commas between."""
EXTRA_STARTS = 3
"""How often one that the run file does not name is started before the run goes on without."""


class ElasticWorkers:
    """The workers that a launcher should have, and what is done about the others."""

    def __init__(
        self, folder: Path, blueprint: Blueprint, children: dict[str, Child], start: Callable[[str], None]
    ) -> None:
        """Take the run file's workers for those wanted, until somebody asks for others."""
        self._folder, self._children, self._start = folder, children, start
        self._own = [name for name, _ in blueprint.run.each_worker()]
        self._is_fixed = bool(blueprint.stages)
        self._read: bytes | None = None
        self._leaving: dict[str, float] = {}
        self._gave_up: set[str] = set()
        self._told: tuple[int, tuple[str, ...]] | None = None
        self.wanted = len(self._own)
        self._gpus = tuple(filter(None, environ.get(GPUS, "").split(",")))

    def see_to(self, report: Report | None) -> None:
        """Start who is missing, have those leave who are too many, and say who is there."""
        if self._is_fixed:
            return
        self._read_size()
        names = self._names()
        for name in [name for name, child in self._children.items() if not child.is_role and name not in names]:
            self._ask_to_leave(name)
        for name in names:
            if name not in self._children and name not in self._gave_up:
                if name not in self._own:
                    make_keys(self._folder / KEYS, name)
                self._start(name)
        if report is not None:
            self._tell(tuple(worker.name for worker in report.workers if worker.state == "working"))

    def environment_of(self, name: str) -> dict[str, str]:
        """Return what a worker's process has otherwise than this one: the only GPU it sees, where each has its own."""
        own = dict(zip(self._names(), self._gpus, strict=False))
        return {"CUDA_VISIBLE_DEVICES": own[name]} if name in own else {}

    def is_leaving(self, name: str) -> bool:
        """Say whether a worker was asked to leave: it is not to be started again."""
        return name in self._leaving

    def left(self, name: str) -> None:
        """Forget a worker that was asked to leave, and has."""
        del self._leaving[name], self._children[name]
        if name not in self._own:
            with suppress(OSError):
                drop_keys(self._folder / KEYS, name)

    def go_on_without(self, name: str) -> None:
        """Have a worker stay away that died and does not come back, until another size is asked for."""
        self._gave_up.add(name)

    def may_start_again(self, child: Child) -> bool:
        """Say whether a worker that died may come back; one that the run file does not name is soon done without."""
        return child.is_role or child.name in self._own or child.starts < EXTRA_STARTS

    def _names(self) -> list[str]:
        """Return those wanted, by name: the run file's first."""
        extras = [f"{EXTRA}-{number + 1}" for number in range(self.wanted - len(self._own))]
        return [*self._own, *extras][: self.wanted]

    def _read_size(self) -> None:
        """Take in what is asked for."""
        try:
            said = (self._folder / SIZE).read_bytes()
            if said == self._read:
                return
            self._read, size = said, msgspec.json.decode(said, type=Size)
        except (OSError, msgspec.MsgspecError):
            return
        self.wanted, self._gpus = max(1, size.workers), size.gpus or self._gpus
        self._gave_up.clear()

    def _ask_to_leave(self, name: str) -> None:
        """Have a worker go; end one that does not."""
        child, now_s = self._children[name], time.monotonic()
        if name not in self._leaving:
            self._leaving[name] = now_s
            child.handle.ask_to_leave()
        elif now_s - self._leaving[name] > LEAVE_S:
            child.end()

    def _tell(self, working: tuple[str, ...]) -> None:
        """Write who works, where that has changed."""
        if (told := (self.wanted, working)) == self._told:
            return
        self._told = told
        present = Present(wanted=self.wanted, workers=working, since_s=time.time())
        with suppress(OSError):  # a full disk is no reason to end
            replace_file(self._folder / TEAM, msgspec.json.encode(present))
