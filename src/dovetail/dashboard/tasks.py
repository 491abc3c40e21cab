"""What takes the planner or the simulator, asked for in plain values and answered in plain values.

A request names a file that the dashboard was given, or holds the text of one that was dropped on the page.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.dashboard.asked import PageTask, thing_in
from dovetail.dashboard.planning import curve_under, plan_under, problem_facts
from dovetail.dashboard.simulating import simulated, workload_facts
from dovetail.errors import DovetailError, SpecError
from dovetail.planner.compile import compile_kernels
from dovetail.spec import Problem
from dovetail.spec.files import read_table, table_in
from dovetail.spec.workload import Workload

T = TypeVar("T", Problem, Workload)


def answer(task: PageTask) -> dict[str, Any]:
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


def get_ready() -> None:
    """Have compiled what plans and decides."""
    compile_kernels(clock=time.perf_counter)


def _thing(task: PageTask) -> Problem | Workload:
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


def encoded(task: bytes) -> bytes:
    """Return the answer to a task as JSON on one line: what is asked for, or what is wrong and the way out."""
    try:
        return msgspec.json.encode({"answer": answer(msgspec.json.decode(task, type=PageTask))})
    except DovetailError as error:
        return msgspec.json.encode({"error": str(error), "hint": error.hint})
    except msgspec.MsgspecError as error:
        return msgspec.json.encode({"error": f"the request is not understood: {error}", "hint": "reload the page"})
    except Exception as error:  # a search of a problem that nobody thought of: the page says so, and goes on
        return msgspec.json.encode({"error": f"{type(error).__name__}: {str(error)[:300]}", "hint": "try another file"})
