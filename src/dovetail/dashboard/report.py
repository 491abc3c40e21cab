"""A report: plans, runs and simulations in one file that needs no server and asks nobody for anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.dashboard import page
from dovetail.dashboard.asked import WhatIf, read_thing
from dovetail.dashboard.planning import curve_under, plan_under
from dovetail.dashboard.run_feed import RunFeed
from dovetail.dashboard.simulating import SHOWN_POLICIES, simulated
from dovetail.dashboard.spans import NUM_BINS
from dovetail.dashboard.tasks import get_ready, thing_facts
from dovetail.dashboard.things import Things
from dovetail.errors import DovetailError, SpecError
from dovetail.runtime.folder import BLUEPRINT
from dovetail.spec import Problem
from dovetail.spec.workload import Workload
from dovetail.version import __version__

QUICK_METHODS = ("exact", "genetic", "greedy", "heuristic", "cpu", "gpu")
"""Those that a problem is planned by where nobody says which: none of them takes seconds."""
MOST_SPANS = 12_000
"""Of one run's timeline in a report; a longer one is there as a whole in bins, and its end span by span."""
POINTS = 600


class HtmlReport:
    r"""One HTML file of several things: each is a tab or a choice in it, as on the page of `dovetail dashboard`.

    Things are looked at when they are added, and the file holds all that is shown: data, script and style. It may be
    opened from a disk, sent by mail, or served by anything.

        from dovetail.dashboard import HtmlReport

        report = HtmlReport("A model from its profile to its training")
        report.add_note("Measured on this machine, planned, then trained as planned.")
        report.add_problem("out/measured.toml", note="What was measured, and the cheapest plan for it.")
        report.add_run("out/run", note="Two workers and a parameter server.")
        report.add_run("out/planned")            # with problem.json and plan.json in it, its plan is there as well
        report.add_simulation("examples/workloads/twelve-jobs.json", policies=("dovetail", "fifo"))
        report.write("out/report.html")

    The command line does the same: `dovetail dashboard out/measured.toml out/run WORKLOAD --out report.html`.
    """

    def __init__(self, title: str = "Dovetail") -> None:
        """Begin an empty one."""
        self._title = title
        self._notes: list[str] = []
        self._plans: list[dict[str, Any]] = []
        self._runs: list[dict[str, Any]] = []
        self._simulations: list[dict[str, Any]] = []

    def add_note(self, text: str) -> None:
        """Add a sentence at the top of the report."""
        self._notes.append(text)

    def add_problem(
        self,
        problem: Problem | str | Path,
        *,
        name: str | None = None,
        methods: Sequence[str] = QUICK_METHODS,
        note: str = "",
    ) -> None:
        """Plan a problem, a value or a file: its cheapest plan, the curve of cost against speed, methods compared."""
        found = problem if isinstance(problem, Problem) else read_thing(Path(problem))
        if not isinstance(found, Problem):
            raise SpecError("is a workload", file=str(problem), hint="add it with add_simulation")
        get_ready()
        tried: list[dict[str, Any]] = []
        for method in dict.fromkeys(["exact", *methods]):
            try:
                tried.append(plan_under(found, WhatIf(), method=method))
            except DovetailError as error:
                tried.append({"method": method, "error": str(error), "hint": error.hint})
        try:
            curve: list[dict[str, Any]] = curve_under(found, WhatIf())
        except DovetailError:  # then there is no plan at any speed, and `exact` says why
            curve = []
        name = name or (Path(problem).name if isinstance(problem, str | Path) else "problem")
        entry = {"name": _free(name, self._plans), "note": note, "problem": thing_facts(found)}
        self._plans.append({**entry, "plan": tried[0], "tried": tried, "curve": curve})

    def add_run(self, folder: str | Path, *, name: str | None = None, note: str = "") -> None:
        """Add a run as its folder tells it: curves, workers, stages, timeline, tables, links, what happened.

        Where `dovetail run` made it, problem and plan in its folder are added as well.
        """
        place = Path(folder).absolute()
        if not place.is_dir() or not any((place / each).exists() for each in (BLUEPRINT, "metrics.jsonl")):
            raise SpecError("is no run", file=str(folder), hint="give the folder that `dovetail train` wrote")
        feed = RunFeed(_free(name or place.name, self._runs), place)
        facts = feed.facts(points=POINTS)
        entry = {"name": feed.name, "note": note, "facts": facts, "windows": _windows(feed, facts["timeline"])}
        self._runs.append(entry)
        if facts["has_plan"]:
            self.add_problem(
                place / "problem.json", name=f"{feed.name}/problem.json", note="What the run was planned by."
            )

    def add_simulation(
        self,
        workload: Workload | str | Path,
        *,
        policies: Iterable[str] = SHOWN_POLICIES,
        name: str | None = None,
        note: str = "",
    ) -> None:
        """Simulate a workload, a value or a file, under several policies."""
        found = workload if isinstance(workload, Workload) else read_thing(Path(workload))
        if not isinstance(found, Workload):
            raise SpecError("is a problem", file=str(workload), hint="add it with add_problem")
        name = name or (Path(workload).name if isinstance(workload, str | Path) else "workload")
        trials = {policy: simulated(found, policy) for policy in policies}
        entry = {"name": _free(name, self._simulations), "note": note, "workload": thing_facts(found)}
        self._simulations.append({**entry, "trials": trials})

    def add(self, things: Things) -> None:
        """Add all that a command line named; a daemon has no place in a report."""
        if things.daemon is not None:
            raise DovetailError(
                f"{things.daemon} is a daemon, and a report is of what is over",
                hint="leave --out away and look at the page, or give the run's folder",
            )
        feeds = things.feeds()
        for name, path in things.problems.items():
            if not any(name.startswith(f"{run}/") for run in feeds):  # those come with their runs
                self.add_problem(path, name=name)
        for feed in feeds.values():
            self.add_run(feed.folder, name=feed.name)
        for name, path in things.workloads.items():
            self.add_simulation(path, name=name)

    def html(self) -> str:
        """Return the report as a page."""
        if not (self._plans or self._runs or self._simulations):
            raise DovetailError("the report is empty", hint="give a run, a problem or a workload")
        data = {
            "title": self._title,
            "version": __version__,
            "made_unix_s": round(time.time(), 1),
            "notes": self._notes,
            "plans": self._plans,
            "runs": self._runs,
            "simulations": self._simulations,
        }
        return page.one_file(msgspec.json.encode(data), self._title)

    def write(self, path: str | Path) -> None:
        """Write the report to a file."""
        try:
            replace_file(Path(path), self.html().encode())
        except OSError as error:
            raise DovetailError(
                f"{path}: cannot be written: {error.strerror}", hint="give a path in a folder that exists"
            ) from None


def _windows(feed: RunFeed, timeline: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a run's timeline for a page that can ask nobody: all of it, and of a long one the end in detail."""
    if timeline is None:
        return []
    from_s, to_s = timeline["from_s"], timeline["to_s"]
    if timeline["spans"] <= MOST_SPANS:
        return [feed.spans.window(from_s, to_s, most=MOST_SPANS)]
    end_s = (to_s - from_s) * MOST_SPANS / timeline["spans"] / 2
    part_s = max((to_s - from_s) / NUM_BINS, end_s)
    return [feed.window(from_s, to_s), feed.spans.window(to_s - part_s, to_s, most=2 * MOST_SPANS)]


def _free(name: str, entries: Sequence[dict[str, Any]]) -> str:
    taken, number, found = {entry["name"] for entry in entries}, 1, name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
