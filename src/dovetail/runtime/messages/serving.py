"""Messages between the coordinator and servers, and between servers: a copy of each one's redo log lies on another."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind


class Load(MessageKind, frozen=True):
    """Take up the state of a checkpoint."""

    generation: int
    step: int
    folder: str


class Adopt(MessageKind, frozen=True):
    """Keep your state, throw away what is under way, and go on as `generation`."""

    generation: int


class Ready(MessageKind, frozen=True):
    """A server has done what `Load` or `Adopt` asked for."""

    name: str
    generation: int
    version: int
    era: int


class Accepted(MessageKind, frozen=True):
    """A server has all gradients of a task (in ssp and async: has applied them)."""

    name: str
    generation: int
    step: int
    task: int
    positions: int
    samples: int
    loss: float


class Norm(MessageKind, frozen=True):
    """Tell the sum of squares of your part of the step's dense gradient."""

    generation: int
    step: int


class NormIs(MessageKind, frozen=True):
    """The answer to `Norm`."""

    name: str
    generation: int
    step: int
    square: float


class Commit(MessageKind, frozen=True):
    """Apply the step: its gradients times `scale`, with `factor` times the learning rates."""

    generation: int
    step: int
    scale: float
    dense_scale: float
    factor: float


class Committed(MessageKind, frozen=True):
    """A server has applied a step."""

    name: str
    generation: int
    step: int
    square: float = 0.0
    """Its part of the squared norm of the summed gradient."""


class Waits(MessageKind, frozen=True):
    """A server keeps everyone waiting, for another site: nothing is wrong."""

    name: str
    generation: int


class Save(MessageKind, frozen=True):
    """Write your part of the checkpoint of `step` into `folder`, as it is now; go on meanwhile."""

    generation: int
    number: int
    """Of this attempt: the same step may be saved more than once."""
    step: int
    folder: str
    next_task: int = 0
    """In ssp and async: every task below this number is applied, and none from it on is handed out."""


class SaveBegun(MessageKind, frozen=True):
    """A server has fixed what its part of a checkpoint holds: what comes now is not in it."""

    name: str
    generation: int
    number: int


class Saved(MessageKind, frozen=True):
    """A server's part of a checkpoint is on disk: its files, with their checksums."""

    name: str
    generation: int
    number: int
    files: dict[str, str]


class SaveFailed(MessageKind, frozen=True):
    """A server could not write its part of a checkpoint."""

    name: str
    generation: int
    number: int
    error: str
    hint: str


class CutLog(MessageKind, frozen=True):
    """The checkpoint of `step` is whole: what a redo log has of the time before is not needed any more."""

    step: int


class Gone(MessageKind, frozen=True):
    """A worker is not there any more: nothing need be remembered for it."""

    worker: str


class LogNote(MessageKind, frozen=True):
    """What people should know of a server's redo log, and whether a checkpoint should come soon: it gets long."""

    name: str
    word: str = ""
    wants_checkpoint: bool = False


class ServerStats(MessageKind, frozen=True):
    """What a server holds and has done."""

    name: str
    rows: int
    memory_bytes: int
    pulled_keys: int
    pushed_keys: int
    busy_s: float
    log_s: float = 0.0
    log_bytes: int = 0


class Copy(MessageKind, frozen=True):
    """Some of a file of the sender's redo log, to be kept from `offset` on: one array of bytes."""

    file: str
    offset: int
    ends: int
    """How long the file is with these bytes, where they end with a whole record; else -1."""
    files: tuple[str, ...]
    """Those that the log consists of: others are not needed any more."""


class Copied(MessageKind, frozen=True):
    """How much of a file is there now, or why it cannot be."""

    file: str
    size: int
    error: str = ""


class CopyWanted(MessageKind, frozen=True):
    """The sender comes back without its log, and asks which files of it are there."""


class CopyIs(MessageKind, frozen=True):
    """The files of the sender's log, and how long each is."""

    files: tuple[tuple[str, int], ...]


class ReadCopy(MessageKind, frozen=True):
    """Some of a file of the sender's log is wanted, from `offset` on."""

    file: str
    offset: int


class CopyPart(MessageKind, frozen=True):
    """The answer: one array of bytes."""
