"""What a user submits: a run file or a command, how many workers of which types it may have, and how much it counts."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_number, check_whole_number
from dovetail.spec.files import struct_from
from dovetail.spec.run import Run

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,47}")
"""A name is a folder's as well."""
KEY = re.compile(r"[A-Za-z0-9-]{8,64}")
MOST_WORDS = 256
MOST_WORKERS = 4096
MOST_PRIORITY = 1e6
MOST = 1e18
"""Of samples in all, and of a loss: what a policy computes with stays far from where numbers end."""


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as it is handed in; unknown keys are errors."""

    name: Annotated[str, Meta(description="letters, digits, `_` and `-`, at most 48; the job's id begins with it")]
    run: Annotated[dict[str, Any] | None, Meta(description="a run file's content, for `dovetail train`")] = None
    command: Annotated[
        list[str] | None, Meta(description="any other program, as words; `{workers}` in a word is how many it has")
    ] = None
    folder: Annotated[str, Meta(description="where it is started: an absolute path on the daemon's machine")] = "/"
    user: Annotated[str, Meta(description="whose it is, for quotas")] = ""
    priority: Annotated[float, Meta(description="how much a second of its delay counts against others, above 0")] = 1.0
    min_workers: Annotated[int, Meta(description="the fewest workers it runs on")] = 1
    max_workers: Annotated[int | None, Meta(description="the most; absent: as many as there are")] = None
    types: Annotated[list[str], Meta(description="the only types it may run on; empty: any")] = []
    prefer: Annotated[list[str], Meta(description="types that count as faster than they are")] = []
    kind: Annotated[str | None, Meta(description="jobs of one kind share what is learnt of their speed")] = None
    target_loss: Annotated[float | None, Meta(description="it is done once its loss is as low as this")] = None
    environment: Annotated[dict[str, str], Meta(description="variables for its processes, e.g. PYTHONPATH")] = {}
    key: Annotated[str | None, Meta(description="drawn by who submits: the same again is the same job")] = None

    def __post_init__(self) -> None:
        """Refuse what could never be run, and names that are no plain file's."""
        if not NAME.fullmatch(self.name):
            raise SpecError(
                f'is "{self.name[:60]}"', key="name", hint="letters, digits, `_` and `-`, at most 48, not `-` first"
            )
        if self.key is not None and not KEY.fullmatch(self.key):
            raise SpecError("is no key", key="key", hint="8 to 64 letters, digits and `-`")
        if (self.run is None) == (self.command is None):
            raise SpecError("needs one of `run` and `command`", key="job", hint="give a run file, or a command")
        if self.command is not None and (not self.command or len(self.command) > MOST_WORDS):
            raise SpecError(f"has {len(self.command)} words", key="command", hint=f"give 1 to {MOST_WORDS} words")
        if any("\0" in word for word in [*(self.command or []), self.folder, *self.environment.values()]):
            raise SpecError("holds a zero byte", key="command", hint="leave it out")
        if not PurePosixPath(self.folder).is_absolute():
            raise SpecError(f'is "{self.folder}"', key="folder", hint="give an absolute path")
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise SpecError(f'has "{name[:60]}"', key="environment", hint="a name is of letters, digits and `_`")
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Refuse numbers out of range."""
        check_number(self, "priority", above=0.0)
        check_whole_number(self, "min_workers", at_least=1)
        if self.max_workers is not None:
            check_whole_number(self, "max_workers", at_least=self.min_workers)
        if max(self.min_workers, self.max_workers or 1) > MOST_WORKERS:
            raise SpecError(f"is above {MOST_WORKERS}", key="max_workers", hint="ask for fewer workers")
        if self.target_loss is not None:
            check_number(self, "target_loss")

    @property
    def parsed_run(self) -> Run | None:
        """The run file, checked."""
        return None if self.run is None else struct_from(self.run, Run, file="run")

    @property
    def fixed_workers(self) -> int | None:
        """How many workers a run with stages has: it cannot be resized. One with a plan counts for `min_workers`."""
        run = self.parsed_run
        if run is not None and run.training.plan is not None:
            return self.min_workers
        return len(run.each_worker()) if run is not None and run.stages else None

    @property
    def total_samples(self) -> float | None:
        """How many samples a run trains on, where its file says."""
        run = self.parsed_run
        if run is None or run.data.samples is None:
            return None
        return float(min(run.data.samples * run.training.epochs, MOST))

    @property
    def speed_kind(self) -> str:
        """What jobs share their speeds with it."""
        if self.kind is not None:
            return self.kind
        run = self.run or {"command": self.command}
        about = [run.get(key) for key in ("model", "training", "servers", "command")]
        return f"{self.name}-{hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:12]}"

    def check_fits(self, capacity: dict[str, int]) -> None:
        """Refuse what no type of the cluster could ever run, and numbers that nobody can decide with."""
        for key, value, most in (("priority", self.priority, MOST_PRIORITY), ("target_loss", self.target_loss, MOST)):
            if value is not None and abs(value) > most:
                raise SpecError(f"is {value:g}", key=key, hint=f"give at most {most:g}")
        if (self.total_samples or 0.0) >= MOST:
            raise SpecError(
                "are too many samples with so many epochs",
                key="run.data.samples",
                hint=f"give fewer than {MOST:.0e} in all",
            )
        for key, names in (("types", self.types), ("prefer", self.prefer)):
            for name in names:
                if name not in capacity:
                    raise SpecError(f'has "{name}", which is no type here', key=key, hint=did_you_mean(name, capacity))
        fewest = self.fixed_workers or self.min_workers
        allowed = {name: count for name, count in capacity.items() if not self.types or name in self.types}
        if max(allowed.values()) < fewest:
            shown = ", ".join(f"{count} {name}" for name, count in allowed.items())
            raise SpecError(f"is {fewest}, and there are {shown}", key="min_workers", hint="ask for fewer workers")
