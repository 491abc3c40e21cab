"""A run as it goes on: figures and events read from its folder, numbered, for any number of readers.

Nothing is consumed by reading. A reader says the number that it has seen last and gets what came after it; one that was
away for so long that this is not kept any more is told to begin anew, with the run as it stands.
"""

from __future__ import annotations

import bisect
import itertools
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dovetail.dashboard.curves import chosen_rows
from dovetail.dashboard.line_files import LineFile
from dovetail.dashboard.spans import Spans
from dovetail.errors import DovetailError
from dovetail.runtime.folder import (
    BLUEPRINT,
    HAPPENED,
    METRICS,
    PARTS,
    REPLANS,
    SUMMARY,
    VALIDATION,
    WIDTHS,
)
from dovetail.runtime.prepare.lock import owner_of

LOOK_S = 0.3
"""How often a folder is looked at, however many read."""
KEPT_EVENTS = 4_000
POINTS = 900
PAUSE_S = 30.0
"""A longer gap between two lines is time in which nobody ran it."""
MOST_FILE = 16 << 20
FIGURES = ("samples_per_s", "loss", "auc", "gradient_norm", "learning_rate")
SHAPES = ("samples_per_s", "loss", "auc")
MOST_LISTED = 500


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something new of a run."""

    number: int
    kind: str
    data: bytes


class RunFeed:
    """Reads one run's folder, once for all who look."""

    def __init__(self, name: str, folder: Path) -> None:
        """Read nothing yet."""
        self.name, self.folder = name, folder
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self.spans = Spans(folder)
        self._begin()

    def _begin(self) -> None:
        self.era = secrets.token_hex(4)
        """What numbers count within: a folder whose files were begun anew has another."""
        self._number = 0
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._metrics = LineFile(self.folder / METRICS)
        self._others = {
            "happened": LineFile(self.folder / HAPPENED),
            "width": LineFile(self.folder / WIDTHS),
            "validated": LineFile(self.folder / VALIDATION),
            "replanned": LineFile(self.folder / REPLANS),
        }
        self._lists: dict[str, deque[Any]] = {kind: deque(maxlen=MOST_LISTED) for kind in self._others}
        self._columns: dict[str, list[float | None]] = {
            name: [] for name in ("unix_s", "ran_s", "samples", "generation", *FIGURES)
        }
        self._metric_columns: dict[str, list[float | None]] = {}
        self._last_line: dict[str, Any] | None = None
        self._state: str | None = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read what is new, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._looked_s < LOOK_S:
                return
            lines = self._metrics.read()
            if self._metrics.begun_anew:
                self._begin()
                lines = self._metrics.read()
            for line in lines:
                if isinstance(line, dict):
                    self._add_line(line)
            for kind, file in self._others.items():
                for line in file.read():
                    found = self._other(kind, line)
                    if found is not None:
                        self._lists[kind].append(found)
                        self._add(kind, found)
            state = self._state_now()
            if state != self._state:
                self._state = state
                self._add("state", {"state": state})
            self._looked_s = time.monotonic()

    def _add(self, kind: str, data: Any) -> None:
        self._number += 1
        self._events.append(Event(number=self._number, kind=kind, data=msgspec.json.encode(data)))

    def _add_line(self, line: dict[str, Any]) -> None:
        columns = self._columns
        unix_s = _number(line.get("unix_s"))
        if unix_s is None:
            return
        before_s = columns["unix_s"][-1] if columns["unix_s"] else None
        gap_s = 0.0 if before_s is None else max(0.0, unix_s - before_s)
        ran_s = (columns["ran_s"][-1] or 0.0) if columns["ran_s"] else 0.0
        first_s = _number(line.get("time_s")) or 0.0
        ran_s = first_s if before_s is None else ran_s + (gap_s if gap_s <= PAUSE_S else min(first_s, PAUSE_S))
        columns["unix_s"].append(unix_s)
        columns["ran_s"].append(ran_s)
        columns["samples"].append(_number(line.get("samples")) or 0.0)
        columns["generation"].append(_number(line.get("generation")))
        for name in FIGURES:
            columns[name].append(_number(line.get(name)))
        count = len(columns["unix_s"])
        metrics = line.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            column = self._metric_columns.setdefault(name, [])
            column += [None] * (count - 1 - len(column))
            column.append(_number(value))
        self._last_line = line = {**line, "ran_s": round(ran_s, 3)}
        self._add("figures", line)

    def _other(self, kind: str, line: Any) -> dict[str, Any] | None:
        """Return a line of one of the other files as the page shows it, with when it was in the time of the curves."""
        if kind == "width":
            if not (isinstance(line, list) and len(line) == 6):
                return None
            names = ("unix_s", "worker", "link", "before", "bits", "gain")
            line = dict(zip(names, line, strict=True))
        if not isinstance(line, dict):
            return None
        return {**line, "ran_s": self._ran_at(_number(line.get("unix_s")))}

    def _ran_at(self, unix_s: float | None) -> float | None:
        """Return how long the run had run at a moment, by the lines around it."""
        if unix_s is None or not self._columns["unix_s"]:
            return None
        moments: list[Any] = self._columns["unix_s"]
        place = min(bisect.bisect_left(moments, unix_s), len(moments) - 1)
        ran_s = (self._columns["ran_s"][place] or 0.0) + max(-PAUSE_S, min(0.0, unix_s - moments[place]))
        return float(round(max(0.0, ran_s), 3))

    def _state_now(self) -> str:
        try:
            if owner_of(self.folder) is not None:
                return "running"
        except DovetailError:
            return "unknown"
        last = self._last_line
        if last is not None and last.get("samples") is not None and last.get("samples") == last.get("total_samples"):
            return "done"
        return "stopped" if last is not None else "not begun"

    # -- asked ---------------------------------------------------------------------------------------------------------

    @property
    def at(self) -> str:
        """Return the number of what came last."""
        return f"{self.era}.{self._number}"

    def after(self, seen: str | None) -> tuple[list[Event], bool]:
        """Return what came after a number, and whether the reader has to begin anew first."""
        with self._lock:
            era, _, text = (seen or "").partition(".")
            number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
            first = self._events[0].number if self._events else self._number + 1
            if era != self.era or number < first - 1 or number > self._number:
                return [], True
            return list(itertools.islice(self._events, number - first + 1, None)), False

    def row(self) -> dict[str, Any]:
        """Return the run as one row of a list."""
        self.look()
        with self._lock:
            return self._row()

    def _row(self) -> dict[str, Any]:
        run, summary, last = self._run_file(), _read(self.folder / SUMMARY), self._last_line or {}
        columns = self._columns
        return {
            "name": self.name,
            "state": self._state,
            "model": _inside(run, "model", "name"),
            "mode": _inside(run, "training", "mode"),
            "batch": _inside(run, "training", "batch"),
            "place": _inside(run, "table", "place"),
            "workers": len(last.get("workers") or {}) or None,
            "begun_unix_s": columns["unix_s"][0] if columns["unix_s"] else None,
            "ran_s": columns["ran_s"][-1] if columns["ran_s"] else None,
            "samples": last.get("samples"),
            "total_samples": last.get("total_samples"),
            "samples_per_s": _number(last.get("samples_per_s")),
            "mean_samples_per_s": self._mean_speed(),
            "loss": _number(summary.get("loss", last.get("loss"))),
            "auc": _number(summary.get("auc", last.get("auc"))),
        }

    def _mean_speed(self) -> float | None:
        """Return samples over seconds, from the first line with samples to the last."""
        samples, ran_s = self._columns["samples"], self._columns["ran_s"]
        first = next((at for at, count in enumerate(samples) if count), None)
        if first is None or not (seconds := (ran_s[-1] or 0.0) - (ran_s[first] or 0.0)):
            return None
        return ((samples[-1] or 0.0) - (samples[first] or 0.0)) / seconds

    def facts(self, *, points: int = POINTS) -> dict[str, Any]:
        """Return the run as it stands, its curves with fewer points."""
        self.look()
        with self._lock:
            self.spans.look()
            run, blueprint = self._run_file(), _read(self.folder / BLUEPRINT)
            rows = chosen_rows(self._columns, SHAPES, points=points)
            summary, parts = _read(self.folder / SUMMARY), _read(self.folder / PARTS)
            return {
                **self._row(),
                "at": self.at,
                "id": blueprint.get("id"),
                "optimizer": _inside(run, "optimizer", "name"),
                "worker_facts": _workers(run),
                "tables": [table for table in blueprint.get("tables") or () if isinstance(table, dict)],
                "curves": {name: [column[at] for at in rows] for name, column in self._columns.items()},
                "metric_curves": {
                    name: [column[at] if at < len(column) else None for at in rows]
                    for name, column in self._metric_columns.items()
                },
                "all_points": len(self._columns["unix_s"]),
                "figures": self._last_line,
                "summary": summary or None,
                "happened": list(self._lists["happened"]),
                "widths": list(self._lists["width"]),
                "validated": list(self._lists["validated"]),
                "replanned": list(self._lists["replanned"]),
                "parts": parts or None,
                "timeline": self.spans.facts(),
                "has_plan": (self.folder / "plan.json").is_file() and (self.folder / "problem.json").is_file(),
            }

    def curve(self, *, points: int = POINTS) -> dict[str, Any]:
        """Return the curves alone, for runs side by side."""
        self.look()
        with self._lock:
            rows = chosen_rows(self._columns, SHAPES, points=points)
            return {"name": self.name, **{n: [column[at] for at in rows] for n, column in self._columns.items()}}

    def window(self, from_s: float, to_s: float) -> dict[str, Any]:
        """Return a part of the timeline."""
        with self._lock:
            self.spans.look()
            return {**self.spans.window(from_s, to_s), "whole": self.spans.facts()}

    def _run_file(self) -> dict[str, Any]:
        found = _read(self.folder / BLUEPRINT).get("run")
        return found if isinstance(found, dict) else {}


def _workers(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return which workers a run file names, and in which stage each is."""
    found = [worker for worker in run.get("worker") or () if isinstance(worker, dict)]
    return [{key: worker.get(key) for key in ("name", "count", "device", "threads", "stage")} for worker in found]


def _read(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds; nothing where there is none, or it is no object."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        if path.stat().st_size <= MOST_FILE:
            found = msgspec.json.decode(path.read_bytes())
            if isinstance(found, dict):
                return found
    return {}


def _inside(table: dict[str, Any], section: str, key: str) -> Any:
    found = table.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
