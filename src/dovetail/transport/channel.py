"""A line to one other process, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dovetail.transport.arrays import Array
from dovetail.transport.envelope import Letter


class Channel(Protocol):
    """Sends requests to one peer and gives back its answers; one thread uses it."""

    def send(self, message: Any, arrays: Sequence[Array] = (), *, one_way: bool = False) -> int:
        """Send a request and return its number; of `one_way` nobody expects an answer."""
        ...

    def receive(self, timeout_s: float) -> Letter | None:
        """Return the next letter, or None where none came in time."""
        ...

    def call(
        self,
        message: Any,
        arrays: Sequence[Array] = (),
        *,
        timeout_s: float,
        give_up: Callable[[], bool] | None = None,
    ) -> Letter:
        """Send a request and return its answer; raise `PeerLost` when the time is over."""
        ...

    def abandon(self) -> None:
        """Want no answer any more to anything that was sent."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
