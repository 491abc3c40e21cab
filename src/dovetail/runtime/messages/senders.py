"""Who may say what: whoever calls is who its key says, and a name in a message can only be its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dovetail.runtime.messages.compression import Residual, ResidualTold, Tuned
from dovetail.runtime.messages.masking import Agree, MaskedPush
from dovetail.runtime.messages.membership import Alive, Died, Failed, Hello, Leaves, SaveNow, Status
from dovetail.runtime.messages.parameters import AddUp, Pull, Push, Refresh
from dovetail.runtime.messages.ring import Holds, InRing, Reduced, RingBroken, RingMeets
from dovetail.runtime.messages.serving import (
    Accepted,
    Committed,
    Copy,
    CopyWanted,
    LogNote,
    NormIs,
    ReadCopy,
    Ready,
    SaveBegun,
    Saved,
    SaveFailed,
    ServerStats,
    Waits,
)
from dovetail.runtime.messages.staging import Collect, Forward, StageSpans
from dovetail.runtime.messages.working import Done, GaveBack, More, RanOut

LAUNCHER = "launcher"
FROM_ALL = (Status, Hello, Alive, Failed)
FROM_SERVERS = (Ready, Accepted, NormIs, Committed, SaveBegun, Saved, SaveFailed, ServerStats, LogNote, Waits)
FROM_WORKERS = (Leaves, More, RanOut, GaveBack, Done, ResidualTold, Tuned)
TO_COORDINATOR: dict[str, tuple[type, ...]] = {
    "launcher": (Status, Died, SaveNow),
    "coordinator": (Status,),
    "server": FROM_ALL + FROM_SERVERS,
    "stage worker": (*FROM_ALL, StageSpans),
    "worker": FROM_ALL + FROM_WORKERS,
}
BROUGHT = (Push, AddUp, Residual, Agree, MaskedPush)
"""What workers of the first stage bring to servers in their own name."""
FROM_RINGS = (Holds, RingMeets, InRing, Reduced, RingBroken, Saved, SaveFailed)
"""What workers say as well where they keep the dense parameters."""


class Senders:
    """The roles of a run's processes, by their names, and what each may say."""

    def __init__(
        self, *, coordinator: str, servers: Collection[str], has_ring: bool, stage_workers: Collection[str] = ()
    ) -> None:
        """Whoever is not named here, and has a key, is a worker (of the first stage)."""
        self._roles = {
            LAUNCHER: "launcher",
            coordinator: "coordinator",
            **dict.fromkeys(servers, "server"),
            **dict.fromkeys(stage_workers, "stage worker"),
        }
        from_rings = FROM_RINGS if has_ring else ()
        self._to_coordinator = {
            role: kinds + from_rings if "worker" in role else kinds for role, kinds in TO_COORDINATOR.items()
        }

    def role_of(self, name: str) -> str:
        """Return launcher, coordinator, server, stage worker or worker."""
        return self._roles.get(name, "worker")

    def why_not_to_coordinator(self, sender: str, message: Any) -> str | None:
        """Return why the coordinator does not take a message of this process, or None where it does."""
        role = self.role_of(sender)
        if not isinstance(message, self._to_coordinator[role]):
            return _not_theirs(sender, role, message)
        if isinstance(message, Hello) and message.role != role:
            return f"{sender} is a {role} and says that it is a {message.role}"
        named = sender if isinstance(message, Died) else getattr(message, "name", sender)
        return None if named == sender else f"{sender} speaks in the name of {named}"

    def why_not_to_server(self, sender: str, message: Any) -> str | None:
        """Return why a server does not take a message of this process, or None where it does."""
        role = self.role_of(sender)
        if role == "server" and isinstance(message, Copy | CopyWanted | ReadCopy):
            return None
        asks = isinstance(message, Pull | Refresh)
        if "worker" not in role or not (asks or (role == "worker" and isinstance(message, BROUGHT))):
            return _not_theirs(sender, role, message)
        if isinstance(message, BROUGHT) and message.worker.partition("/")[0] != sender:
            return f"{sender} speaks in the name of {message.worker}"
        return None


def why_not_to_stage(senders: Senders, sender: str, message: Any) -> str | None:
    """Return why a worker of a later stage does not take a message of this process, or None where it does."""
    role = senders.role_of(sender)
    if "worker" not in role or not isinstance(message, Forward if role == "stage worker" else Forward | Collect):
        return _not_theirs(sender, role, message)
    if role == "worker" and message.head.partition("/")[0] != sender:
        return f"{sender} speaks in the name of {message.head}"
    return None


def _not_theirs(sender: str, role: str, message: Any) -> str:
    """Say that a role does not send a kind of message here."""
    return f"{sender} is a {role}, and {type(message).__name__} is not for it to say here"
