"""Figures of the daemon and of every job that runs, in Prometheus' text format."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dovetail.prometheus import Sample, counter, gauge, page_of
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobStore

if TYPE_CHECKING:
    from dovetail.serve.controller import Controller


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


def metrics_text(store: JobStore, controller: Controller, settings: DaemonSettings, counters: Counters) -> str:
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
    families = [
        gauge("dovetail_jobs", "Jobs by state.", [({"state": k}, v) for k, v in store.counts().items()]),
        gauge("dovetail_workers", "Workers there are.", [({"type": k}, v) for k, v in settings.capacity.items()]),
        gauge("dovetail_workers_held", "Workers that jobs hold.", [({"type": k}, v) for k, v in held.items()]),
        counter("dovetail_decisions_total", "Times that the policy was asked.", [({}, controller.decisions)]),
        counter("dovetail_decision_seconds_total", "Seconds that it took.", [({}, controller.decision_s)]),
        counter("dovetail_problems_total", "Turns that went wrong.", [({}, controller.problems)]),
        counter("dovetail_resizes_total", "Resizes of running jobs.", [({}, len(resizes_s))]),
        counter("dovetail_resize_seconds_total", "Seconds that they took.", [({}, sum(resizes_s))]),
        counter("dovetail_starts_total", "Starts of jobs.", [({}, len(starts_s))]),
        counter("dovetail_start_seconds_total", "Seconds that they took.", [({}, sum(starts_s))]),
        counter(
            "dovetail_http_requests_total",
            "Requests that were answered.",
            [({"status": str(k)}, v) for k, v in sorted(counters.by_status.items())],
        ),
        *(gauge(f"dovetail_job_{name}", f"{name} of each running job.", found) for name, found in of_jobs.items()),
    ]
    return page_of(families)
