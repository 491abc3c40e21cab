"""What the page asks for that takes the planner or the simulator, in plain values; neither is loaded by asking."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dovetail.catalogue import problem_from_table, users_catalogue
from dovetail.errors import SpecError
from dovetail.spec import Problem
from dovetail.spec.files import read_table, struct_from
from dovetail.spec.workload import Workload

MOST_LAYERS = 2_000
MOST_TYPES = 200
MOST_JOBS = 20_000
"""What a file may hold for the page to show it."""


class WhatIf(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be otherwise than in the problem's file."""

    min_samples_per_s: float | None = None
    max_cost_per_hour: float | None = None
    prices: dict[str, float] = {}
    """USD per unit and hour, by type."""
    limits: dict[str, int | None] = {}
    """Units to be had, by type; None: no limit."""


class PageTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request: what to do, with which file."""

    do: Literal["describe", "plan", "curve", "simulate"]
    file: str | None = None
    """Its path, where the dashboard was given it; the page names it otherwise."""
    name: str = "file"
    text: str | None = None
    what_if: WhatIf = WhatIf()
    method: str = "exact"
    policy: str = "dovetail"


def thing_in(table: dict[str, Any], file: str) -> Problem | Workload:
    """Return the problem or the workload that a file's table is; refuse others, and those that are too large."""
    if "layer" in table or "resource" in table or "training" in table:
        problem = problem_from_table(users_catalogue(()), table, file=file)
        _check_size(len(problem.layers), MOST_LAYERS, "layers", file)
        _check_size(len(problem.resources), MOST_TYPES, "types", file)
        return problem
    if "jobs" in table:
        workload = struct_from(table, Workload, file=file)
        _check_size(len(workload.jobs), MOST_JOBS, "jobs", file)
        return workload
    raise SpecError(
        "is neither a problem nor a workload",
        file=file,
        hint="a problem has [training], [[resource]] and [[layer]]; a workload has `nodes` and `jobs`",
    )


def read_thing(path: Path) -> Problem | Workload:
    """Return the problem or the workload in a file."""
    return thing_in(read_table(path), str(path))


def _check_size(count: int, most: int, what: str, file: str) -> None:
    if count > most:
        raise SpecError(f"has {count:,} {what}", file=file, hint=f"the page shows files of at most {most:,}")
