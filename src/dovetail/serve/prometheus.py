"""Figures of the daemon and of every job that runs, in Prometheus' text format."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dovetail.serve.settings import Settings
from dovetail.serve.store import Store

if TYPE_CHECKING:
    from dovetail.serve.controller import Controller

Sample = tuple[dict[str, str], float]


class Counters:
    """How many requests were answered, by status."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self.by_status: dict[int, int] = {}

    def add(self, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self.by_status[status] = self.by_status.get(status, 0) + 1


def metrics_text(store: Store, controller: Controller, settings: Settings, counters: Counters) -> str:
    """Return everything on one page."""
    running = store.jobs(("running",))
    held = dict.fromkeys(settings.capacity, 0)
    for job in running:
        held[job.type or ""] = held.get(job.type or "", 0) + job.workers
    of_jobs: dict[str, list[Sample]] = {
        "workers": [],
        "samples": [],
        "samples_per_second": [],
        "loss": [],
        "attempt": [],
    }
    for job in running:
        label = {"job": job.id, "user": job.user}
        progress = controller.progress.get(job.id)
        of_jobs["workers"].append((label, job.workers))
        of_jobs["attempt"].append((label, job.attempt))
        if progress is not None:
            of_jobs["samples"].append((label, progress.done))
            if progress.speed is not None:
                of_jobs["samples_per_second"].append((label, progress.speed))
            if progress.loss is not None:
                of_jobs["loss"].append((label, progress.loss))
    resizes_s, starts_s = store.changes_s("resize", 1_000_000), store.changes_s("start", 1_000_000)
    parts = [
        _gauge("dovetail_jobs", "Jobs by state.", [({"state": k}, v) for k, v in store.counts().items()]),
        _gauge("dovetail_workers", "Workers there are.", [({"type": k}, v) for k, v in settings.capacity.items()]),
        _gauge("dovetail_workers_held", "Workers that jobs hold.", [({"type": k}, v) for k, v in held.items()]),
        _counter("dovetail_decisions_total", "Times that the policy was asked.", [({}, controller.decisions)]),
        _counter("dovetail_decision_seconds_total", "Seconds that it took.", [({}, controller.decision_s)]),
        _counter("dovetail_problems_total", "Turns that went wrong.", [({}, controller.problems)]),
        _counter("dovetail_resizes_total", "Resizes of running jobs.", [({}, len(resizes_s))]),
        _counter("dovetail_resize_seconds_total", "Seconds that they took.", [({}, sum(resizes_s))]),
        _counter("dovetail_starts_total", "Starts of jobs.", [({}, len(starts_s))]),
        _counter("dovetail_start_seconds_total", "Seconds that they took.", [({}, sum(starts_s))]),
        _counter(
            "dovetail_http_requests_total",
            "Requests that were answered.",
            [({"status": str(k)}, v) for k, v in sorted(counters.by_status.items())],
        ),
        *(_gauge(f"dovetail_job_{name}", f"{name} of each running job.", found) for name, found in of_jobs.items()),
    ]
    return "".join(parts)


def _gauge(name: str, help_: str, samples: Iterable[Sample]) -> str:
    return _family(name, "gauge", help_, samples)


def _counter(name: str, help_: str, samples: Iterable[Sample]) -> str:
    return _family(name, "counter", help_, samples)


def _family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
