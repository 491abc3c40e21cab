"""The daemon's HTTP API: JSON in and out, a token for everything but `/healthz`, bodies of limited size."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dovetail.errors import DovetailError, SpecError
from dovetail.prometheus import CONTENT_TYPE
from dovetail.serve.controller import DRAIN, Controller
from dovetail.serve.http import Guard, answered, not_allowed, not_found, number_in, object_in, piece_of, went_wrong
from dovetail.serve.local import LOG
from dovetail.serve.openapi import document
from dovetail.serve.prometheus import Counters, metrics_text
from dovetail.serve.settings import Settings
from dovetail.serve.store import STATES, Job, Store
from dovetail.serve.submission import Submission
from dovetail.spec.files import struct_from

MOST_LISTED = 10_000


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many workers a job is to have; none: as many as the policy gives it."""

    workers: int | None = None


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """on: nothing starts any more; now: what runs keeps a checkpoint and waits; off: as usual."""

    state: str = "on"


class Api:
    """What requests are answered by."""

    def __init__(self, store: Store, controller: Controller, settings: Settings) -> None:
        """Keep what answers come from."""
        self._store, self._controller, self._settings = store, controller, settings
        self.counters = Counters()
        self._begun_s = time.time()

    def app(self, token: str) -> ASGIApp:
        """Return the application."""
        routes = [
            Route("/healthz", answered(lambda *_: {"ok": True}), methods=["GET"]),
            Route("/openapi.json", answered(lambda *_: document()), methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/v1/jobs", answered(self._jobs), methods=["GET", "POST"]),
            Route("/v1/jobs/{job}", answered(self._show), methods=["GET"]),
            Route("/v1/jobs/{job}/cancel", answered(self._cancel), methods=["POST"]),
            Route("/v1/jobs/{job}/resize", answered(self._resize), methods=["POST"]),
            Route("/v1/jobs/{job}/log", answered(self._log), methods=["GET"]),
            Route("/v1/jobs/{job}/events", answered(self._events), methods=["GET"]),
            Route("/v1/events", answered(self._events), methods=["GET"]),
            Route("/v1/cluster", answered(self._cluster), methods=["GET"]),
            Route("/v1/drain", answered(self._drain), methods=["POST"]),
        ]
        inner = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_allowed, 500: went_wrong})
        return Guard(inner, token=token, counters=self.counters)

    def _jobs(self, request: Request, body: bytes) -> dict[str, Any]:
        return self._submit(request, body) if request.method == "POST" else self._list(request, body)

    def _submit(self, request: Request, body: bytes) -> dict[str, Any]:
        submission = struct_from(object_in(body), Submission, file="job")
        submission.check_fits(self._settings.capacity)
        if self._settings.hosts is not None and submission.run is None:
            raise SpecError(
                "is a program, and this daemon's workers are on other hosts",
                key="command",
                hint="submit a run file, or start a daemon there",
            )
        job, is_new = self._store.submit(submission)
        if is_new:
            self._controller.wake()
        return self._facts(job)

    def _list(self, request: Request, body: bytes) -> dict[str, Any]:
        wanted = request.query_params.getlist("state") or list(STATES)
        if unknown := [state for state in wanted if state not in STATES]:
            raise SpecError(f'is "{unknown[0][:60]}"', key="state", hint=f"one of {', '.join(STATES)}")
        last = number_in(request, "last", 1000, most=MOST_LISTED)
        return {"jobs": [self._facts(job) for job in self._store.jobs(wanted, last=last)]}

    def _show(self, request: Request, body: bytes) -> dict[str, Any]:
        job = self._store.job(request.path_params["job"])
        return {**self._facts(job), "submission": msgspec.to_builtins(job.submission)}

    def _cancel(self, request: Request, body: bytes) -> dict[str, Any]:
        job = self._store.cancel(request.path_params["job"])
        self._controller.wake()
        return self._facts(job)

    def _resize(self, request: Request, body: bytes) -> dict[str, Any]:
        job, wish = self._store.job(request.path_params["job"]), struct_from(object_in(body), Resize, file="resize")
        self._check_size(job, wish.workers)
        job = self._store.pin(job.id, wish.workers)
        self._controller.wake()
        return self._facts(job)

    def _check_size(self, job: Job, workers: int | None) -> None:
        """Refuse a size that a job cannot have."""
        if not job.is_open:
            raise DovetailError(f"{job.id} is {job.state}", hint="only a job that waits or runs can be resized")
        submission = job.submission
        if submission.fixed_workers:
            raise DovetailError(
                f"{job.id} has stages of {submission.fixed_workers} workers in all", hint="change its run file"
            )
        if workers is None:
            return
        names = submission.types or list(self._settings.capacity)
        most = max(self._settings.capacity[name] for name in names)
        if not 1 <= workers <= most:
            raise SpecError(f"is {workers}, and there are {most}", key="workers", hint=f"give 1 to {most}")

    def _log(self, request: Request, body: bytes) -> dict[str, Any]:
        job = self._store.job(request.path_params["job"])
        text, offset = piece_of(self._controller.folder_of(job.id) / LOG, number_in(request, "offset", 0, most=1 << 62))
        return {"text": text, "next": offset, "state": job.state}

    def _events(self, request: Request, body: bytes) -> dict[str, Any]:
        job = request.path_params.get("job")
        if job is not None:
            self._store.job(job)
        return {"events": self._store.events(job=job, after=number_in(request, "after", 0, most=1 << 62))}

    def _cluster(self, request: Request, body: bytes) -> dict[str, Any]:
        held = dict.fromkeys(self._settings.capacity, 0)
        for job in self._store.jobs(("running",)):
            held[job.type or ""] = held.get(job.type or "", 0) + job.workers
        return {
            "types": [
                {"type": name, "workers": count, "held": held[name]} for name, count in self._settings.capacity.items()
            ],
            "policy": self._settings.policy,
            "quotas": self._settings.quotas,
            "drain": self._store.setting(DRAIN) or "off",
            "jobs": self._store.counts(),
            "process": os.getpid(),
            "up_s": round(time.time() - self._begun_s, 1),
        }

    def _drain(self, request: Request, body: bytes) -> dict[str, Any]:
        wish = struct_from(object_in(body), Drain, file="drain")
        if wish.state not in ("on", "now", "off"):
            raise SpecError(f'is "{wish.state[:60]}"', key="state", hint="one of on, now, off")
        self._store.set(DRAIN, None if wish.state == "off" else wish.state)
        self._store.note("drain", detail=wish.state)
        self._controller.wake()
        return self._cluster(request, body)

    async def _metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(metrics_text, self._store, self._controller, self._settings, self.counters)
        return Response(text, media_type=CONTENT_TYPE)

    def _facts(self, job: Job) -> dict[str, Any]:
        """Return what is told of a job."""
        progress = self._controller.progress.get(job.id)
        present = None if progress is None or job.state != "running" else progress.present()
        return {
            "id": job.id,
            "state": job.state,
            "user": job.user,
            "priority": job.submission.priority,
            "type": job.type,
            "workers": job.workers,
            "units": job.units,
            "present": None if present is None else present[0],
            "pinned": job.pinned,
            "stopping": job.why,
            "attempt": job.attempt,
            "submitted_s": job.submitted_s,
            "started_s": job.started_s,
            "finished_s": job.finished_s,
            "done": job.done if progress is None else progress.done,
            "total": job.total if progress is None else progress.total,
            "loss": job.loss if progress is None else progress.loss,
            "samples_per_s": None if progress is None or job.state != "running" else progress.speed,
            "folder": str(self._controller.folder_of(job.id)),
            "error": job.error,
        }
