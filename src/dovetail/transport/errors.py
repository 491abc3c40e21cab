"""What can go wrong between processes.

DovetailError
├── WireError             bytes from a peer, or for one, that are not an envelope
├── PeerLost              a process cannot be reached, or takes nothing
├── KeyRingError          a key is missing, broken or readable by others
└── ListenError           an address cannot be listened at
"""

from __future__ import annotations

from dovetail.errors import DovetailError

SAME_VERSION = "all processes of a run must have the same version of Dovetail"


class WireError(DovetailError):
    """Bytes that are not an envelope; `request` is its number where that much could be read, else 0."""

    def __init__(self, message: str, *, hint: str = SAME_VERSION, request: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.request = request


class PeerLost(DovetailError):  # noqa: N818 - what happened, as whoever catches it would say it
    """The process `peer` cannot be reached, or takes nothing."""

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(f"{peer} {message}", hint=f"see whether {peer} still runs, and what its log says last")
        self.peer = peer


class KeyRingError(DovetailError):
    """A key that is missing, broken or readable by others."""


class ListenError(DovetailError):
    """An address that cannot be listened at."""
