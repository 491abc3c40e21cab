"""Connections to the daemon: so many at once, none of them idle for long, and those with the token before others.

A connection that asks nothing within a few seconds is closed. Where there are as many as there may be, the oldest goes
whose owner has not shown the token; where all have, the newcomer does.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from dovetail.open_files import share_of_files

MOST_CONNECTIONS = 512
ASK_S = 10.0
"""How long a connection may take to ask something: the head of a request, from its first moment on."""


class LimitedConnection(H11Protocol):
    """One of a limited number of connections."""

    open: ClassVar[dict[LimitedConnection, None]] = {}
    """All of them, the oldest first."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        """Begin without the token, and let what answers say otherwise."""
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self.has_token = False
        self.challenge: tuple[str, str] | None = None
        """The nonces, its owner's and ours, that the next request on it has to be signed with."""
        self._asks: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take it in, where need be in place of another."""
        super().connection_made(transport)
        most = share_of_files(4, MOST_CONNECTIONS)
        if len(self.open) >= most:
            strangers = (other for other in self.open if not other.has_token)
            gone = next(strangers, None)
            if gone is None:
                transport.abort()
                return
            gone.drop()
        self.open[self] = None
        self._asks = self.loop.call_later(ASK_S, self._has_asked_nothing)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of it."""
        self.open.pop(self, None)
        if self._asks is not None:
            self._asks.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close it at once."""
        self.open.pop(self, None)
        self.transport.abort()

    def _has_asked_nothing(self) -> None:
        has_asked = getattr(self, "cycle", None) is not None
        if not has_asked and not self.transport.is_closing():
            self.drop()
