"""The line to a server inside one process: each request is a call of whoever answers it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.transport import Envelope, PeerLost, Sendable, Unwritten
from dovetail.transport.arrays import Array

Handler = Callable[[Envelope], tuple[Any, Sequence[Sendable]]]


class DirectCaller:
    """Answers each request by calling `handler`; what it raises comes out of `ask`."""

    is_near = False

    def __init__(self, handler: Handler, *, peer: str = "handler", identity: bytes = b"direct") -> None:
        """Call `handler` with envelopes from `identity`."""
        self._handler, self._peer, self._identity = handler, peer, identity
        self._last_request = 0
        self._answers: deque[Envelope] = deque()

    def ask(self, message: Any, arrays: Sequence[Array] = ()) -> int:
        """Handle the request now and keep its answer for `receive`."""
        self._last_request += 1
        request = self._last_request
        answer, answer_arrays = self._handler(Envelope(self._identity, request, message, _read_only(arrays)))
        self._answers.append(Envelope(b"", request, answer, _read_only(answer_arrays)))
        return request

    def receive(self, timeout_s: float) -> Envelope | None:
        """Return the oldest answer, or None: no other can come."""
        return self._answers.popleft() if self._answers else None

    def abandon(self) -> None:
        """Want none of the answers that are kept."""
        self._answers.clear()

    def close(self) -> None:
        """Forget the handler."""
        self._answers.clear()
        self._handler = self._closed

    def _closed(self, envelope: Envelope) -> tuple[Any, Sequence[Sendable]]:
        raise PeerLost(self._peer, "is asked on a closed channel")


def _read_only(arrays: Sequence[Sendable]) -> tuple[Array, ...]:
    """Return views that cannot be written through, as they come out of a socket."""
    views = tuple(array.written() if isinstance(array, Unwritten) else array.view() for array in arrays)
    for view in views:
        view.flags.writeable = False
    return views
