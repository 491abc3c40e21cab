"""The way from the page to a daemon elsewhere: requests are handed on, signed with the token that the user typed.

The page sends the token in a header to this server alone. From here on it does not travel: the daemon has to prove that
it has the same one, and is sent a proof. Nothing is kept of it.
"""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dovetail.errors import DovetailError
from dovetail.serve.client import SignedLine
from dovetail.serve.guard import MOST_BODY, error_answer

BEARER = "Bearer "
STREAM = "/v1/stream"
STREAM_S = 20.0
"""How long a stream may be silent: the daemon says at least every few seconds that it is there."""
NO_TOKEN = ("the token is missing", "type it into the page: the daemon's folder has it in the file `token`")


class DaemonLine:
    """Hands requests on to one daemon."""

    def __init__(self, url: str) -> None:
        """Hand on to this address."""
        self._url = url

    def routes(self, is_closing: Callable[[], bool]) -> list[Route]:
        """Return what is handed on."""

        async def stream(request: Request) -> Response:
            return await self._stream(request, is_closing)

        return [
            Route(STREAM, stream, methods=["GET"]),
            Route("/v1/{path:path}", self._hand_on, methods=["GET", "POST"]),
        ]

    async def _hand_on(self, request: Request) -> Response:
        token = _token(request)
        if token is None:
            return error_answer(401, *NO_TOKEN)
        body = await request.body()
        if len(body) > MOST_BODY:
            return error_answer(413, f"the body is larger than {MOST_BODY:,} bytes", "send less")
        try:
            status, text = await run_in_threadpool(self._ask, token, request.method, _target(request), body)
        except (OSError, http.client.HTTPException) as error:
            return error_answer(502, f"the daemon at {self._url} does not answer: {error}", "is it running?")
        except DovetailError as error:
            return error_answer(401, str(error), error.hint)
        return Response(text, status_code=status, media_type="application/json")

    def _ask(self, token: str, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        with SignedLine(self._url, token) as line:
            answer = line.send(method, target, body)
            return answer.status, answer.read()

    async def _stream(self, request: Request, is_closing: Callable[[], bool]) -> Response:
        token = _token(request)
        if token is None:
            return error_answer(401, *NO_TOKEN)
        line = SignedLine(self._url, token, timeout_s=STREAM_S)
        try:
            answer = await run_in_threadpool(line.send, "GET", _target(request), b"")
        except (OSError, http.client.HTTPException) as error:
            line.close()
            return error_answer(502, f"the daemon at {self._url} does not answer: {error}", "is it running?")
        except DovetailError as error:
            line.close()
            return error_answer(401, str(error), error.hint)
        if answer.status != 200:
            text = await run_in_threadpool(answer.read)
            line.close()
            return Response(text, status_code=answer.status, media_type="application/json")
        return StreamingResponse(_pieces(line, answer, is_closing), media_type="text/event-stream")


async def _pieces(
    line: SignedLine, answer: http.client.HTTPResponse, is_closing: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield what a daemon's stream says; it ends where that ends."""
    try:
        with suppress(OSError, http.client.HTTPException):
            while not is_closing():
                piece = await run_in_threadpool(answer.read1, 65536)
                if not piece:
                    break
                yield piece
    finally:
        line.close()


def _token(request: Request) -> str | None:
    given = request.headers.get("authorization", "")
    return given[len(BEARER) :] if given.startswith(BEARER) and len(given) > len(BEARER) else None


def _target(request: Request) -> str:
    """Return path and query as they came."""
    path = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path
