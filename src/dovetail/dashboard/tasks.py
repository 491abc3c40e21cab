"""What takes the planner or the simulator, asked for in plain values and answered in plain values.

A request names a file that the dashboard was given, or holds the text of one that was dropped on the page.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from dovetail.catalogue import problem_from_table, users_catalogue
from dovetail.dashboard.planning import WhatIf, curve_under, plan_under, problem_facts
from dovetail.dashboard.simulating import simulated, workload_facts
from dovetail.errors import DovetailError, SpecError
from dovetail.planner.compile import compile_kernels
from dovetail.spec import Problem
from dovetail.spec.files import read_table, struct_from, table_in
from dovetail.spec.workload import Workload

T = TypeVar("T", Problem, Workload)
MOST_LAYERS = 2_000
MOST_TYPES = 200
MOST_JOBS = 20_000
"""What a file may hold for the page to show it."""


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request: what to do, with which file."""

    do: Literal["describe", "plan", "curve", "simulate"]
    file: str | None = None
    """Its path, where the dashboard was given it; the page names it otherwise."""
    name: str = "file"
    text: str | None = None
    what_if: WhatIf = WhatIf()
    method: str = "exact"
    policy: str = "dovetail"


def answer(task: Task) -> dict[str, Any]:
    """Return what a task asks for; raises what a user can put right."""
    thing = _thing(task)
    if task.do == "describe":
        return thing_facts(thing)
    if task.do == "simulate":
        return simulated(_needed(thing, Workload, task.name), task.policy)
    problem = _needed(thing, Problem, task.name)
    if task.do == "curve":
        return {"plans": curve_under(problem, task.what_if)}
    return plan_under(problem, task.what_if, method=task.method)


def thing_facts(thing: Problem | Workload) -> dict[str, Any]:
    """Return what a file holds, as the page shows it."""
    if isinstance(thing, Problem):
        return {"kind": "problem", **problem_facts(thing)}
    return {"kind": "workload", **workload_facts(thing)}


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


def get_ready() -> None:
    """Have compiled what plans and decides."""
    compile_kernels(clock=time.perf_counter)


def _thing(task: Task) -> Problem | Workload:
    """Return what a task's file holds."""
    if task.text is not None:
        return _thing_of(task.text, task.name)
    if task.file is None:
        raise SpecError("names no file", key="task", hint="give one")
    return thing_in(read_table(Path(task.file)), task.name)


@functools.lru_cache(maxsize=4)
def _thing_of(text: str, name: str) -> Problem | Workload:
    return thing_in(table_in(text, file=name), name)


def _needed(thing: Problem | Workload, kind: type[T], name: str) -> T:
    if not isinstance(thing, kind):
        raise SpecError(f"is no {kind.__name__.lower()}", file=name, hint="open it in the other view")
    return thing


def _check_size(count: int, most: int, what: str, file: str) -> None:
    if count > most:
        raise SpecError(f"has {count:,} {what}", file=file, hint=f"the page shows files of at most {most:,}")


def encoded(task: bytes) -> bytes:
    """Return the answer to a task as JSON on one line: what is asked for, or what is wrong and the way out."""
    try:
        return msgspec.json.encode({"answer": answer(msgspec.json.decode(task, type=Task))})
    except DovetailError as error:
        return msgspec.json.encode({"error": str(error), "hint": error.hint})
    except msgspec.MsgspecError as error:
        return msgspec.json.encode({"error": f"the request is not understood: {error}", "hint": "reload the page"})
    except Exception as error:  # a search of a problem that nobody thought of: the page says so, and goes on
        return msgspec.json.encode({"error": f"{type(error).__name__}: {str(error)[:300]}", "hint": "try another file"})
