"""What a launcher and the keeper of its processes on another host say to each other.

A request is answered by the class that it names. Both travel as bytes, whatever carries them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """A request or an answer."""


class Fine(Message, frozen=True):
    """It is done."""


class Refused(Message, frozen=True):
    """It cannot be done, and why."""

    error: str
    hint: str = ""


class Facts(Message, frozen=True):
    """What a host has; `keeper` is another one when its processes are gone."""

    keeper: str
    cores: int
    gpus: int
    memory_bytes: int
    folder: str
    """Where files come to."""


class AskFacts(Message, frozen=True):
    """Tell what the host has."""


class Bring(Message, frozen=True):
    """Write files into the keeper's folder: by path below it, readable by its user alone."""

    files: dict[str, bytes]


class Fetch(Message, frozen=True):
    """Return what files below the keeper's folder hold; those that are not there are left out."""

    paths: tuple[str, ...]


class Fetched(Message, frozen=True):
    """The contents of files."""

    files: dict[str, bytes]


class AskMissing(Message, frozen=True):
    """Tell which of these absolute paths are not there."""

    paths: tuple[str, ...]


class Missing(Message, frozen=True):
    """The paths that are not there."""

    paths: tuple[str, ...]


class AskPorts(Message, frozen=True):
    """Find ports of an address that nobody listens on."""

    address: str
    count: int


class Ports(Message, frozen=True):
    """Free ports."""

    ports: tuple[int, ...]


class Start(Message, frozen=True):
    """Start a process: one of the run, by its name, or a command line of `dovetail`.

    What it writes goes to `logs/NAME.log`; of a command, what it prints goes to `logs/NAME.out`.
    """

    name: str
    kind: Literal["process", "command"] = "process"
    arguments: tuple[str, ...] = ()


class Signal(Message, frozen=True):
    """Have a process leave, or end it."""

    name: str
    process_id: int
    what: Literal["leave", "kill"]


class Look(Message, frozen=True):
    """Tell how the processes are; logs are told from these places on."""

    logs: dict[str, int] = {}


class State(Message, frozen=True):
    """A process; `ended` says how, or nothing while it runs."""

    process_id: int
    ended: str = ""


class Seen(Message, frozen=True):
    """The processes, by name, and what is new in their logs."""

    states: dict[str, State]
    logs: dict[str, bytes] = {}


class Close(Message, frozen=True):
    """End every process and remove the folder."""


Request: TypeAlias = AskFacts | Bring | Fetch | AskMissing | AskPorts | Start | Signal | Look | Close
Answer: TypeAlias = Fine | Refused | Facts | Fetched | Missing | Ports | State | Seen

encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
decode_request = _requests.decode
decode_answer = _answers.decode
