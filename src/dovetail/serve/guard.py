"""Stands before the API: a token for all but `/healthz` and `/v1/challenge`, and bodies of limited size and time."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.serve.prometheus import Counters
from dovetail.serve.proof import NONCE, SCHEME, client_proof, daemon_proof

MOST_BODY = 1 << 20
"""Bytes of a request's body."""
BODY_S = 60.0
"""How long it may take to come."""
CHALLENGE = "/v1/challenge"
OPEN = ("/healthz", CHALLENGE)
"""What anybody may ask."""


class Guard:
    """Lets those in who have the token, or prove that they do, and bodies that are not too large."""

    def __init__(self, app: ASGIApp, *, token: str, counters: Counters, open_below: str | None = None) -> None:
        """Stand before an application; what lies below a path that is `open_below` anybody may have."""
        self._app, self._token, self._counters = app, token, counters
        self._open_below = open_below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = scope.get("state", {}).get("connection")
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"authorization", b"")
        is_open, has_token = self._is_open(scope), self._is_token(given)
        may_prove = connection is not None and connection.challenge is not None and given.startswith(SCHEME.encode())
        if not (is_open or has_token or may_prove):
            await self._answer(self._refusal(), scope, receive, send)
            return
        body = await _read_body(receive, headers.get(b"content-length", b"0"))
        if body is None:
            answer = error_answer(413, f"the body is larger than {MOST_BODY:,} bytes, or slow", "send less")
            await self._answer(answer, scope, receive, send)
            return
        is_known = has_token or (may_prove and self._is_proven(scope, connection, given, body))
        if is_known and connection is not None:
            connection.has_token = True
        if not (is_open or is_known):
            await self._answer(self._refusal(), scope, receive, send)
        elif scope["path"] == CHALLENGE:
            await self._answer(self._challenge(scope, connection), scope, receive, send)
        else:
            await self._hand_on(body, scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        if self._open_below is not None and scope["method"] == "GET" and ".." not in scope["path"]:
            return scope["path"] in OPEN or f"{scope['path']}/".startswith(self._open_below)
        return scope["path"] in OPEN

    def _is_token(self, given: bytes) -> bool:
        return hmac.compare_digest(given.removeprefix(b"Bearer "), self._token.encode())

    def _is_proven(self, scope: Scope, connection: Any, given: bytes, body: bytes) -> bool:
        """Say whether a request is signed with the token, for this connection and this moment."""
        (nonce, challenge), connection.challenge = connection.challenge, None
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        wanted = client_proof(self._token, nonce, challenge, scope["method"], target.decode("latin-1"), body)
        return hmac.compare_digest(given.removeprefix(SCHEME.encode()), wanted.encode())

    def _challenge(self, scope: Scope, connection: Any) -> Response:
        """Prove that we have the token, and draw what the next request on this connection is to be signed with."""
        nonce = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("nonce", "")
        if not NONCE.fullmatch(nonce):
            return error_answer(
                422, f'nonce is "{nonce[:60]}"', "send 16 to 64 letters, digits, `-` and `_`, drawn anew"
            )
        challenge = secrets.token_urlsafe(24)
        if connection is not None:
            connection.challenge = (nonce, challenge)
        return json_answer(200, {"challenge": challenge, "proof": daemon_proof(self._token, nonce, challenge)})

    def _refusal(self) -> Response:
        hint = "send `Authorization: Bearer`, and what FOLDER/token holds"
        return error_answer(401, "the token is wrong or missing", hint)

    async def _answer(self, answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
        self._counters.add(answer.status_code)
        await answer(scope, receive, send)

    async def _hand_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer, with the body that was read."""
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
    """Return a request's body; None where it is too large, whatever its header says, or does not come."""
    if not told.isdigit() or int(told) > MOST_BODY:
        return None
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
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
    except TimeoutError:
        return None


def json_answer(status: int, facts: dict[str, Any]) -> Response:
    """Return an answer of one JSON object."""
    return Response(msgspec.json.encode(facts), status_code=status, media_type="application/json")


def error_answer(status: int, error: str, hint: str) -> Response:
    """Return what is wrong, and the way out."""
    return json_answer(status, {"error": error, "hint": hint})
