"""The daemon's HTTP API: JSON in and out, behind a guard, errors in words."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from dovetail.errors import DovetailError, SpecError
from dovetail.prometheus import CONTENT_TYPE
from dovetail.serve.controller import DRAIN, Controller
from dovetail.serve.guard import Guard, error_answer, json_answer
from dovetail.serve.local import LOG
from dovetail.serve.openapi import document
from dovetail.serve.prometheus import Counters, metrics_text
from dovetail.serve.server_sent import server_sent
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import STATES, JobRecord, JobStore, UnknownJobError
from dovetail.serve.submission import Submission
from dovetail.spec.files import struct_from

LOG_PIECE = 256 * 1024
Answer = Callable[[Request], Awaitable[Response]]

MOST_LISTED = 10_000
PAGE = "/dashboard"
MOST_STREAMS = 64
STREAM_LOOK_S = 0.3
STREAM_BEAT_S = 5.0
"""How often a stream says what time it is, whatever happens."""


def answered(answer: Callable[[Request, bytes], dict[str, Any]]) -> Answer:
    """Have a plain function answer requests, in a thread, its errors in the words that users see."""

    async def respond(request: Request) -> Response:
        body = await request.body()
        try:
            return json_answer(200, await run_in_threadpool(answer, request, body))
        except UnknownJobError as error:
            return error_answer(404, str(error), error.hint)
        except SpecError as error:
            return error_answer(422, str(error), error.hint)
        except DovetailError as error:
            return error_answer(409, str(error), error.hint)

    return respond


def object_in(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds."""
    try:
        found = msgspec.json.decode(body or b"{}")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise SpecError(f"the body is no JSON: {error}", hint="send one JSON object") from None
    if not isinstance(found, dict):
        raise SpecError("the body is no JSON object", hint="send one JSON object: {...}")
    return found


def number_in(request: Request, name: str, default: int, *, most: int) -> int:
    """Return a whole number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise SpecError(f'is "{text[:60]}"', key=name, hint=f"give a whole number of at most {most:,}")
    return int(text)


def piece_of(path: Path, offset: int) -> tuple[str, int]:
    """Return a piece of a file from a place on, and the place after it; letters are never cut in two."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            found = file.read(LOG_PIECE)
    except OSError:
        return "", offset
    for cut in range(4):  # of a letter that goes on after the piece
        try:
            return found[: len(found) - cut].decode(), offset + len(found) - cut
        except UnicodeDecodeError:
            continue
    return found.decode(errors="replace"), offset + len(found)


async def went_wrong(_: Request, problem: Exception) -> Response:
    """Answer where the daemon itself made a mistake; the problem goes to its log as well."""
    return error_answer(
        500, f"{type(problem).__name__}: {str(problem)[:200]}", "this is a mistake of the daemon: see its log"
    )


async def not_found(request: Request, _: Exception) -> Response:
    """Answer a path that is none."""
    return error_answer(404, f"there is nothing at {request.url.path[:120]}", "see /openapi.json")


async def not_allowed(request: Request, problem: Exception) -> Response:
    """Answer a method that a path does not take, with those that it does."""
    answer = error_answer(405, f"{request.method} is not what {request.url.path[:120]} takes", "see /openapi.json")
    answer.headers.update(getattr(problem, "headers", None) or {})
    return answer


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many workers a job is to have; none: as many as the policy gives it."""

    workers: int | None = None


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """on: nothing starts any more; now: what runs keeps a checkpoint and waits; off: as usual."""

    state: str = "on"


class Api:
    """What requests are answered by."""

    def __init__(self, store: JobStore, controller: Controller, settings: DaemonSettings) -> None:
        """Keep what answers come from."""
        self._store, self._controller, self._settings = store, controller, settings
        self.counters = Counters()
        self.is_closing: Callable[[], bool] = lambda: False
        """Whether the daemon ends: streams end with it."""
        self._streams = 0
        self._begun_s = time.monotonic()

    def app(self, token: str, *, page: ASGIApp | None = None) -> ASGIApp:
        """Return the application, with a page that anybody may load below `PAGE`: its data need the token."""
        routes: list[BaseRoute] = [
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
            Route("/v1/stream", self._stream, methods=["GET"]),
            Route("/v1/decision", answered(self._decision), methods=["GET"]),
            Route("/v1/cluster", answered(self._cluster), methods=["GET"]),
            Route("/v1/drain", answered(self._drain), methods=["POST"]),
        ]
        if page is not None:
            routes.append(Mount(PAGE, app=page))
        inner = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_allowed, 500: went_wrong})
        open_below = None if page is None else f"{PAGE}/"
        return Guard(inner, token=token, counters=self.counters, open_below=open_below)

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

    def _check_size(self, job: JobRecord, workers: int | None) -> None:
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
        found = self._store.events(job=job, after=number_in(request, "after", 0, most=1 << 62))
        ahead_s = self._store.clock.day_ahead_s()
        return {"events": [{**event, "t_s": round(event["t_s"] + ahead_s, 3)} for event in found]}

    def _decision(self, request: Request, body: bytes) -> dict[str, Any]:
        found = self._controller.last_decision
        return {**found, "t_s": found["t_s"] + self._store.clock.day_ahead_s()} if found else {}

    async def _stream(self, request: Request) -> Response:
        """Answer with what happens from now on, or since an event, as server-sent events."""
        seen = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        if not (seen.isascii() and seen.isdigit() and len(seen) < 19):
            return error_answer(422, f'after is "{seen[:60]}"', "give the number of an event, or 0")
        if self._streams >= MOST_STREAMS:
            return error_answer(503, f"{self._streams} streams are read already", "close some, or ask /v1/events")
        return StreamingResponse(self._news(int(seen)), media_type="text/event-stream")

    async def _news(self, seen: int) -> AsyncIterator[bytes]:
        """Yield every event after a number, and the time of day now and then."""
        self._streams += 1
        told_s = -STREAM_BEAT_S
        try:
            while not self.is_closing():
                ahead_s = self._store.clock.day_ahead_s()
                if time.monotonic() - told_s >= STREAM_BEAT_S:
                    told_s = time.monotonic()
                    yield server_sent("time", {"unix_s": round(time.time(), 3)})
                for event in await run_in_threadpool(self._store.events, after=seen):
                    seen = event["number"]
                    yield server_sent("event", {**event, "t_s": round(event["t_s"] + ahead_s, 3)}, number=str(seen))
                await asyncio.sleep(STREAM_LOOK_S)
        finally:
            self._streams -= 1

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
            "up_s": round(time.monotonic() - self._begun_s, 1),
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

    def _facts(self, job: JobRecord) -> dict[str, Any]:
        """Return what is told of a job."""
        progress = self._controller.progress.get(job.id)
        present = None if progress is None or job.state != "running" else progress.present()
        ahead_s = self._store.clock.day_ahead_s()
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
            "submitted_s": job.submitted_s + ahead_s,
            "started_s": None if job.started_s is None else job.started_s + ahead_s,
            "finished_s": None if job.finished_s is None else job.finished_s + ahead_s,
            "done": job.done if progress is None else progress.done,
            "total": job.total if progress is None else progress.total,
            "loss": job.loss if progress is None else progress.loss,
            "samples_per_s": None if progress is None or job.state != "running" else progress.speed,
            "folder": str(self._controller.folder_of(job.id)),
            "error": job.error,
        }
