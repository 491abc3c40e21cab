"""A line to one other process, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dovetail.transport.arrays import Array
from dovetail.transport.envelope import Letter


class Channel(Protocol):
    """Sends requests to one peer and gives back its answers; one thread uses it."""

    is_near: bool
    """Whether large arrays go through shared memory."""

    def ask(self, message: Any, arrays: Sequence[Array] = ()) -> int:
        """Send a request and return its number."""
        ...

    def receive(self, timeout_s: float) -> Letter | None:
        """Return the next letter, or None where none came in time."""
        ...

    def abandon(self) -> None:
        """Want no answer any more to anything that was asked."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
