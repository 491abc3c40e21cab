"""What a launcher and its process that speaks to Ray say to each other; what keepers are asked passes through."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dovetail.runtime.launch.hosts.protocol import KeeperMessage, RequestRefused


class Node(KeeperMessage, frozen=True):
    """A node of the cluster, and what of it nobody has taken."""

    name: str
    address: str
    free: dict[str, float]
    gpus: float = 0.0
    """All of them, taken or not."""


class Connected(KeeperMessage, frozen=True):
    """The first word where the cluster lets us in; where it does not, that is `RequestRefused`."""

    here: str
    """The address of this machine in the cluster."""
    nodes: tuple[Node, ...]


class Open(KeeperMessage, frozen=True):
    """Have a keeper on the node with this address; answered with its facts."""

    number: int
    host: str
    address: str


class Ask(KeeperMessage, frozen=True):
    """Pass a request on to the keeper of a host."""

    number: int
    host: str
    request: bytes
    timeout_s: float


class Hold(KeeperMessage, frozen=True):
    """Reserve resources of a node under a key, for as long as they are held."""

    number: int
    key: str
    address: str
    resources: dict[str, float]
    timeout_s: float


class LetGo(KeeperMessage, frozen=True):
    """Give back what is reserved under a key; nobody waits for that."""

    key: str


class Forget(KeeperMessage, frozen=True):
    """End the keeper of a host; nobody waits for that."""

    host: str


class Reply(KeeperMessage, frozen=True):
    """What came of `Open`, `Ask` or `Hold`: an answer, or why there is none."""

    number: int
    answer: bytes = b""
    lost: str = ""
    """It may be tried again."""
    problem: str = ""
    """It is for a person to put right."""
    hint: str = ""


ToDriver: TypeAlias = Open | Ask | Hold | LetGo | Forget
FromDriver: TypeAlias = Connected | RequestRefused | Reply

_to_driver: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_from_driver: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)
decode_to_driver = _to_driver.decode
decode_from_driver = _from_driver.decode
