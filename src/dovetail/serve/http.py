"""Before and around the API's answers: who may ask, how much they may send, and errors in the words that users see."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import DovetailError, SpecError
from dovetail.serve.prometheus import Counters
from dovetail.serve.store import UnknownJobError

MOST_BODY = 1 << 20
"""Bytes of a request's body."""
LOG_PIECE = 256 * 1024
Answer = Callable[[Request], Awaitable[Response]]


class Guard:
    """Lets those in who have the token, and bodies that are not too large."""

    def __init__(self, app: ASGIApp, *, token: str, counters: Counters) -> None:
        """Stand before an application."""
        self._app, self._token, self._counters = app, token.encode(), counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if scope["path"] != "/healthz" and not hmac.compare_digest(given, self._token):
            self._counters.add(401)
            await _error(
                401, "the token is wrong or missing", "send `Authorization: Bearer`, and what FOLDER/token holds"
            )(scope, receive, send)
            return
        body = await _read_body(receive, headers.get(b"content-length", b"0"))
        if body is None:
            self._counters.add(413)
            await _error(413, f"the body is larger than {MOST_BODY:,} bytes", "send less")(scope, receive, send)
            return
        handed = False

        async def receive_read() -> Message:
            nonlocal handed
            if handed:
                return await receive()
            handed = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.add(message["status"])
            await send(message)

        await self._app(scope, receive_read, send_counted)


async def _read_body(receive: Receive, told: bytes) -> bytes | None:
    """Return a request's body; None where it is too large, whatever its header says."""
    if not told.isdigit() or int(told) > MOST_BODY:
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def answered(answer: Callable[[Request, bytes], dict[str, Any]]) -> Answer:
    """Have a plain function answer requests, in a thread, its errors in the words that users see."""

    async def respond(request: Request) -> Response:
        body = await request.body()
        try:
            return _json(200, await run_in_threadpool(answer, request, body))
        except UnknownJobError as error:
            return _error(404, str(error), error.hint)
        except SpecError as error:
            return _error(422, str(error), error.hint)
        except DovetailError as error:
            return _error(409, str(error), error.hint)

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


def _json(status: int, facts: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(facts), status_code=status, media_type="application/json")


def _error(status: int, error: str, hint: str) -> Response:
    return _json(status, {"error": error, "hint": hint})


async def went_wrong(_: Request, problem: Exception) -> Response:
    """Answer where the daemon itself made a mistake; the problem goes to its log as well."""
    return _error(
        500, f"{type(problem).__name__}: {str(problem)[:200]}", "this is a mistake of the daemon: see its log"
    )


async def not_found(request: Request, _: Exception) -> Response:
    """Answer a path that is none."""
    return _error(404, f"there is nothing at {request.url.path[:120]}", "see /openapi.json")


async def not_allowed(request: Request, problem: Exception) -> Response:
    """Answer a method that a path does not take, with those that it does."""
    answer = _error(405, f"{request.method} is not what {request.url.path[:120]} takes", "see /openapi.json")
    answer.headers.update(getattr(problem, "headers", None) or {})
    return answer
