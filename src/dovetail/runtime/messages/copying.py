"""Messages between servers: a copy of each one's redo log lies on another."""

from __future__ import annotations

from dovetail.runtime.messages.kind import MessageKind


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
