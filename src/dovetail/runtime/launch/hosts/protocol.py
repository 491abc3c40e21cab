"""What every launcher has in common: a process somewhere, and a line to the host that it is on.

A launcher starts the coordinator and the servers beside itself and workers where their hosts are. `Handle` is a
process on any machine. `HostConnection` is how one host is reached: SSH is one, and whoever adds another (a cluster of
its own) writes that class alone; which worker goes where, what is brought, what happens to a host that is lost and how
it ends are the same for all of them (`fleet`).

To keepers over SSH, and to who speaks to Ray, messages go as a stream of bytes, each with its length before it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from dovetail.errors import DovetailError
from dovetail.spec.hosts import Host


class KeeperMessage(msgspec.Struct, frozen=True, tag=True):
    """A request or an answer, of a keeper or of who passes it on."""


class Fine(KeeperMessage, frozen=True):
    """It is done."""


class RequestRefused(KeeperMessage, frozen=True):
    """It cannot be done, and why."""

    error: str
    hint: str = ""


class HostFacts(KeeperMessage, frozen=True):
    """What a host has; `keeper` is another one when its processes are gone."""

    keeper: str
    cores: int
    gpus: int
    memory_bytes: int
    folder: str
    """Where files come to."""


class AskFacts(KeeperMessage, frozen=True):
    """Tell what the host has."""


class Bring(KeeperMessage, frozen=True):
    """Write files into the keeper's folder: by path below it, readable by its user alone."""

    files: dict[str, bytes]


class Fetch(KeeperMessage, frozen=True):
    """Return what files below the keeper's folder hold; those that are not there are left out."""

    paths: tuple[str, ...]


class FetchedFiles(KeeperMessage, frozen=True):
    """The contents of files."""

    files: dict[str, bytes]


class AskMissing(KeeperMessage, frozen=True):
    """Tell which of these absolute paths are not there."""

    paths: tuple[str, ...]


class MissingPaths(KeeperMessage, frozen=True):
    """The paths that are not there."""

    paths: tuple[str, ...]


class AskPorts(KeeperMessage, frozen=True):
    """Find ports of an address that nobody listens on."""

    address: str
    count: int


class Ports(KeeperMessage, frozen=True):
    """Free ports."""

    ports: tuple[int, ...]


class StartProcess(KeeperMessage, frozen=True):
    """Start a process: one of the run, by its name, or a command line of `dovetail`.

    What it writes goes to `logs/NAME.log`; of a command, what it prints goes to `logs/NAME.out`.
    """

    name: str
    kind: Literal["process", "command"] = "process"
    arguments: tuple[str, ...] = ()


class Signal(KeeperMessage, frozen=True):
    """Have a process leave, or end it."""

    name: str
    process_id: int
    what: Literal["leave", "kill"]


class AskStates(KeeperMessage, frozen=True):
    """Tell how the processes are; logs are told from these places on."""

    logs: dict[str, int] = {}


class ProcessState(KeeperMessage, frozen=True):
    """A process; `ended` says how, or nothing while it runs."""

    process_id: int
    ended: str = ""


class ProcessStates(KeeperMessage, frozen=True):
    """The processes, by name, and what is new in their logs."""

    states: dict[str, ProcessState]
    logs: dict[str, bytes] = {}


class CloseKeeper(KeeperMessage, frozen=True):
    """End every process and remove the folder."""


KeeperRequest: TypeAlias = (
    AskFacts | Bring | Fetch | AskMissing | AskPorts | StartProcess | Signal | AskStates | CloseKeeper
)
KeeperAnswer: TypeAlias = (
    Fine | RequestRefused | HostFacts | FetchedFiles | MissingPaths | Ports | ProcessState | ProcessStates
)

encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[KeeperRequest] = msgspec.msgpack.Decoder(KeeperRequest)
_answers: msgspec.msgpack.Decoder[KeeperAnswer] = msgspec.msgpack.Decoder(KeeperAnswer)
decode_request = _requests.decode
decode_answer = _answers.decode


HERE = ""
"""What the launching machine is called where hosts are named."""


class HostProblem(DovetailError):  # noqa: N818
    """A host cannot be used: it is not reached, does not let us in, or lacks what is needed."""


class Unreachable(Exception):  # noqa: N818
    """A line broke, or nobody answered in time: it may be opened again."""


class Handle(Protocol):
    """A process of a run, on any machine."""

    @property
    def host(self) -> str:
        """Return the name of its host, nothing for the launching machine."""
        ...

    @property
    def pid(self) -> int:
        """Return its process id on its host; 0 before that is known."""
        ...

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        ...

    def ask_to_leave(self) -> None:
        """Have a worker hand its tasks to others and end."""
        ...

    def kill(self) -> None:
        """End it at once; nothing happens where it has ended."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most so long."""
        ...


class HostConnection(Protocol):
    """The way to one host and the keeper of our processes there. Calls come from one thread at a time."""

    host: Host
    here: str
    """The launching machine's address as this host reaches it, once the line is open."""

    def open(self) -> HostFacts:
        """Reach the host and its keeper, which is started where there is none; again after a `Unreachable`.

        What the user has to put right is a `HostProblem`; a host that is not there for now is a `Unreachable` where the
        line was open before.
        """
        ...

    def call(self, request: KeeperRequest, timeout_s: float) -> KeeperAnswer:
        """Return the keeper's answer, or raise `Unreachable`."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


LENGTH_BYTES = 8
MOST_BYTES = 1 << 34
"""Of one message: whoever announces more is not one of us."""
CHUNK_BYTES = 1 << 20


def framed(content: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def length_of(head: bytes) -> int:
    """Return how long the message is that such bytes announce; refuse one that nobody sends."""
    length = int.from_bytes(head, "big")
    if length > MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


class FramedSocket:
    """Sends messages from any thread, and receives them in one; a side that hangs up is an `EOFError`."""

    def __init__(self, connection: socket.socket, *, heard: Callable[[], None] = lambda: None) -> None:
        """Take a connection over; `heard` is called whenever some bytes come, however long the message is."""
        self._socket, self._heard = connection, heard
        self._sending = threading.Lock()

    def send(self, content: bytes) -> None:
        """Send a message."""
        with self._sending:
            self._socket.sendall(framed(content))

    def receive(self) -> bytes:
        """Wait for a message."""
        return self._read(length_of(self._read(LENGTH_BYTES)))

    def poll(self, timeout_s: float) -> bool:
        """Say whether something came, or the other side hung up, within so long."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def hang_up(self) -> None:
        """Have both sides see the end; whoever receives here sees it as well, and closes."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(min(count - len(found), CHUNK_BYTES))
            if not part:
                raise EOFError
            self._heard()
            found += part
        return bytes(found)
