"""Stands before the page: only this server's own pages ask, under a name that is its own, and no body is large.

A browser that was lured to another site can be made to ask this server under that site's name (DNS rebinding): a name
that is not a number, `localhost` or this machine's is refused. What changes nothing may be asked by anybody who reaches
the port; what takes time is asked by the page alone.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.dashboard.page import POLICY
from dovetail.serve.guard import error_answer

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
FROM_HERE = ("same-origin", "none", "")
"""What a browser says of who asks; others than browsers say nothing."""


class WithHeaders:
    """Sends what browsers are to hold to with every answer."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, send_guarded)


class PageGuard:
    """Lets requests for the page in, and sends what browsers are to hold to with every answer."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = ()) -> None:
        """Stand before an application that is also known by other `names`."""
        self._app = WithHeaders(app)
        self._names = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower(), *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await WithHeaders(error_answer(403, *refusal))(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[str, str] | None:
        host = headers.get(b"host", "")
        if not self._is_own(host):
            return f"`{host[:80]}` is not a name of this server", "use http://127.0.0.1:PORT, or its own name"
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = headers.get(b"origin")
        is_here = headers.get(b"sec-fetch-site", "") in FROM_HERE
        if (origin is not None and origin != f"http://{host}") or not is_here:
            return "another site asks", "open the dashboard itself"
        if headers.get(b"content-type", "").partition(";")[0].strip() != "application/json":
            return "the body is no JSON", "send Content-Type: application/json"
        return None

    def _is_own(self, host: str) -> bool:
        """Say whether a Host header names this server: an address, which cannot be rebound, or one of its names."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
