"""What the page asks for: its own files, plans, runs and simulations as JSON, and what is new of a run as events.

    GET  /                          the page, its script and its style
    GET  /api/things                what the dashboard was given
    POST /api/task                  describe, plan, curve or simulate (`tasks`)
    GET  /api/runs                  every run in a row
    GET  /api/run?name=             one run as it stands, with the number of its last event
    GET  /api/curve?name=           its curves alone
    GET  /api/timeline?name=        a part of its timeline
    GET  /api/run/events?name=      what comes after a number, as server-sent events
    *    /v1/...                    the daemon's own API, where there is one (`daemon_line`)

What takes time is asked by POST, of a process beside the server (`task_runner`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dovetail.dashboard import page
from dovetail.dashboard.asked import PageTask
from dovetail.dashboard.daemon_line import DaemonLine
from dovetail.dashboard.guard import WithHeaders
from dovetail.dashboard.run_feed import LOOK_S, RunFeed
from dovetail.dashboard.task_runner import TaskRunner
from dovetail.dashboard.things import Things, UnknownThingError
from dovetail.errors import DovetailError, SpecError
from dovetail.serve.guard import MOST_BODY, error_answer, json_answer
from dovetail.serve.server_sent import server_sent
from dovetail.version import __version__

PLAN_S = 20.0
"""How long one plan or curve may take in the page."""
LONG_S = 90.0
"""How long a method that searches, or a simulation, may take."""
MOST_READERS = 64
BEAT_S = 10.0
"""After how long without news a line says that the connection is alive."""
RETRY_MS = 1500

Handler = Callable[[Request], Awaitable[Response]]


def page_routes() -> list[Route]:
    """Return what serves the page's own files."""
    return [
        Route("/", _file(page.html, "text/html"), methods=["GET"]),
        Route("/page.js", _file(page.script, "text/javascript"), methods=["GET"]),
        Route("/page.css", _file(page.style, "text/css"), methods=["GET"]),
        Route("/favicon.ico", _nothing, methods=["GET"]),
    ]


def _file(text: Callable[[], str], kind: str) -> Handler:
    async def respond(_: Request) -> Response:
        return Response(text(), media_type=kind)

    return respond


async def _nothing(_: Request) -> Response:
    return Response(status_code=204)


def page_of_daemon() -> Starlette:
    """Return the page as a daemon serves it: of its own cluster alone."""

    async def things(_: Request) -> Response:
        facts = {"version": __version__, "problems": [], "workloads": [], "runs": False, "plans": False, "daemon": True}
        return json_answer(200, facts)

    routes = [*page_routes(), Route("/api/things", things, methods=["GET"])]
    inner = Starlette(routes=routes, exception_handlers={404: _not_found})
    inner.add_middleware(WithHeaders)
    return inner


class DashboardApp:
    """What requests are answered by."""

    def __init__(self, things: Things) -> None:
        """Answer about these things."""
        self._things = things
        self._quick, self._long = TaskRunner(PLAN_S), TaskRunner(LONG_S)
        self._line = None if things.daemon is None else DaemonLine(things.daemon)
        self.is_closing: Callable[[], bool] = lambda: False
        """Whether the server ends: streams end with it."""
        self._readers = 0

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            *page_routes(),
            Route("/api/things", _answered(self._all), methods=["GET"]),
            Route("/api/runs", _answered(self._runs), methods=["GET"]),
            Route("/api/run", _answered(self._run), methods=["GET"]),
            Route("/api/curve", _answered(self._curve), methods=["GET"]),
            Route("/api/timeline", _answered(self._timeline), methods=["GET"]),
            Route("/api/run/events", self._events, methods=["GET"]),
            Route("/api/task", self._task, methods=["POST"]),
        ]
        if self._line is not None:
            routes += self._line.routes(self._ends)
        return Starlette(routes=routes, exception_handlers={404: _not_found, 500: _went_wrong})

    def _ends(self) -> bool:
        return self.is_closing()

    def start(self) -> None:
        """Have what plans loaded before it is asked for, where there is something to plan."""
        if self._things.problems:
            self._quick.start()

    def close(self) -> None:
        """End what was started."""
        self._quick.close()
        self._long.close()

    # -- what there is -------------------------------------------------------------------------------------------------

    def _all(self, _: Request) -> dict[str, Any]:
        self._things.feeds()
        return {
            "version": __version__,
            "problems": list(self._things.problems),
            "workloads": list(self._things.workloads),
            "runs": bool(self._things.feeds()) or bool(self._things.folders),
            "daemon": self._things.daemon is not None,
            "plans": True,
        }

    def _runs(self, _: Request) -> dict[str, Any]:
        return {"runs": [feed.row() for feed in self._things.feeds().values()]}

    def _run(self, request: Request) -> dict[str, Any]:
        return self._feed(request).facts()

    def _curve(self, request: Request) -> dict[str, Any]:
        return self._feed(request).curve()

    def _timeline(self, request: Request) -> dict[str, Any]:
        from_s, to_s = _seconds(request, "from"), _seconds(request, "to")
        if not from_s < to_s:
            raise SpecError(f"is {from_s}, and `to` is {to_s}", key="from", hint="give a moment before `to`")
        return self._feed(request).window(from_s, to_s)

    def _feed(self, request: Request) -> RunFeed:
        return self._things.feed(request.query_params.get("name", ""))

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def _task(self, request: Request) -> Response:
        body = await body_of(request)
        if body is None:
            return error_answer(413, f"the body is larger than {MOST_BODY:,} bytes", "drop a smaller file")
        try:
            task = msgspec.json.decode(body, type=PageTask)
            if task.file is not None:
                task = msgspec.structs.replace(task, file=str(self._things.file(task.file)), name=task.file)
            elif task.text is None:
                raise SpecError("names no file", key="file", hint="give a file's name, or its text")
            is_quick = task.do in ("describe", "plan", "curve") and task.method == "exact"
            answer = await run_in_threadpool((self._quick if is_quick else self._long).do, task)
        except msgspec.MsgspecError as error:
            return error_answer(422, f"the request is not understood: {error}", "reload the page")
        except DovetailError as error:
            return error_answer(404 if isinstance(error, UnknownThingError) else 409, str(error), error.hint)
        return Response(answer, media_type="application/json")

    # -- events --------------------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Response:
        try:
            feed = await run_in_threadpool(self._feed, request)
        except DovetailError as error:
            return error_answer(404, str(error), error.hint)
        if self._readers >= MOST_READERS:
            return error_answer(503, f"{self._readers} readers look already", "close some of them")
        seen = request.headers.get("last-event-id") or request.query_params.get("after")
        return StreamingResponse(
            self._news(feed, seen), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _news(self, feed: RunFeed, seen: str | None) -> AsyncIterator[bytes]:
        """Yield what comes after a number for as long as somebody reads."""
        self._readers += 1
        quiet_s = 0.0
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self.is_closing():
                await run_in_threadpool(feed.look)
                events, is_lost = feed.after(seen)
                if is_lost:
                    seen = feed.at
                    yield server_sent("reset", {}, number=seen)
                for event in events:
                    seen = f"{feed.era}.{event.number}"
                    yield server_sent(event.kind, event.data, number=seen)
                quiet_s = 0.0 if events or is_lost else quiet_s + LOOK_S
                if quiet_s >= BEAT_S:
                    quiet_s = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(LOOK_S)
        finally:
            self._readers -= 1


async def body_of(request: Request) -> bytes | None:
    """Return a request's body; None where it is too large, whatever its header says."""
    parts: list[bytes] = []
    async for part in request.stream():
        parts.append(part)
        if sum(map(len, parts)) > MOST_BODY:
            return None
    return b"".join(parts)


def _answered(answer: Callable[[Request], dict[str, Any]]) -> Handler:
    """Have a plain function answer requests in a thread, its errors in the words that users see."""

    async def respond(request: Request) -> Response:
        try:
            return json_answer(200, await run_in_threadpool(answer, request))
        except UnknownThingError as error:
            return error_answer(404, str(error), error.hint)
        except DovetailError as error:
            return error_answer(422, str(error), error.hint)

    return respond


def _seconds(request: Request, name: str) -> float:
    try:
        found = float(request.query_params.get(name, ""))
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e15:
        raise SpecError(f'is "{request.query_params.get(name, "")[:40]}"', key=name, hint="give seconds since 1970")
    return found


async def _not_found(request: Request, _: Exception) -> Response:
    return error_answer(404, f"there is nothing at {request.url.path[:120]}", "the page is at /")


async def _went_wrong(_: Request, problem: Exception) -> Response:
    return error_answer(500, f"{type(problem).__name__}: {str(problem)[:200]}", "this is a mistake of the dashboard")
