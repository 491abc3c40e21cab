"""Copies of redo logs on other servers: what the loss of a host or disk leaves.

Each server sends what it appends to its log to the next one, and tells the coordinator of nothing that rests on a
record before that is there too. A server that comes back without its log, or with a damaged one, reads the copy.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.messages import Copied, Copy, CopyIs, CopyPart, CopyWanted, ReadCopy
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.redo.records import set_length
from dovetail.runtime.server.redo.writer import RedoFile
from dovetail.transport import Channel, Envelope, PeerLost, Refused

PART_BYTES = 4 << 20
AGAIN_S = 0.5
"""When a part is sent again that nobody has confirmed: the other server may have come back meanwhile."""
FETCH_S = 20.0
"""How long a server that comes back tries to get its copy."""
FILE = re.compile(r"e[0-9]{6,}-v[0-9]{10,}\.redo")


class CopySender:
    """Sends a log to the server that keeps its copy; one part at a time is under way."""

    def __init__(self, log: RedoLog, line: Channel, keeper: str) -> None:
        """Send over a line of its own, which `close` closes."""
        self._log, self._line, self._keeper = log, line, keeper
        self.socket: Any = getattr(line, "socket", None)
        self._there: dict[str, int] = {}
        """How much of each file the other server has."""
        self._asked: tuple[int, str] | None = None
        self._asked_s = 0.0
        self._refused: set[str] = set()
        """Files that the other server cannot keep."""

    @property
    def is_safe(self) -> bool:
        """Say whether everything in the log is with the other server as well."""
        return not self._behind()

    def _behind(self) -> list[RedoFile]:
        """Return the files of which something is missing there, the oldest first."""
        files = [file for file in self._log.files if file.path.name not in self._refused]
        return [file for file in files if self._there.get(file.path.name, -1) != file.size]

    def go_on(self) -> None:
        """Take in what the other server says, and send it what it lacks."""
        while (envelope := self._line.receive(0)) is not None:
            if self._asked is not None and envelope.request == self._asked[0]:
                self._hear(self._asked[1], envelope.message)
                self._asked = None
        if self._asked is not None and time.monotonic() - self._asked_s > AGAIN_S:
            self._line.abandon()
            self._there.pop(self._asked[1], None)
            self._asked = None
        if self._asked is None and (behind := self._behind()):
            self._send(behind[0])

    def _hear(self, name: str, message: Any) -> None:
        error = message.reason if isinstance(message, Refused) else message.error
        if error:
            self._refused.add(name)
            self._log.words.append(f"its redo log has no copy on {self._keeper}, until the next checkpoint: {error}")
        else:
            self._there[name] = message.size

    def _send(self, file: RedoFile) -> None:
        """Send the next part of a file; of one that nothing is known about, nothing but the question how long it is."""
        name = file.path.name
        there = self._there.get(name)
        offset = file.size if there is None else there if there <= file.size else 0
        data = file.bytes_from(offset, PART_BYTES) if there is not None else b""
        end = offset + len(data)
        message = Copy(
            file=name,
            offset=offset,
            ends=end if end == file.size and data else -1,
            files=tuple(each.path.name for each in self._log.files),
        )
        with suppress(PeerLost):  # it is away, and will be asked when it is back
            self._asked = (self._line.ask(message, [np.frombuffer(data, dtype=np.uint8)]), name)
        self._asked_s = time.monotonic()

    def close(self) -> None:
        """Close the line."""
        self._line.close()


class CopyKeeper:
    """Keeps copies of other servers' logs, and gives them back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answer(self, envelope: Envelope) -> tuple[Any, list[NDArray[np.uint8]]] | None:
        """Return the answer to a server, with its arrays; None where an envelope is about something else."""
        message = envelope.message
        if not isinstance(message, Copy | CopyWanted | ReadCopy):
            return None
        folder = self._folder / f"of-{envelope.owner}"
        if isinstance(message, CopyWanted):
            return CopyIs(files=tuple(sorted(_files_in(folder)))), []
        if not FILE.fullmatch(message.file):
            return Refused(reason=f"{message.file!r} is no file of a redo log"), []
        if isinstance(message, ReadCopy):
            return CopyPart(), [np.frombuffer(_read(folder / message.file, message.offset), dtype=np.uint8)]
        return self._keep(folder, message, envelope.arrays), []

    def _keep(self, folder: Path, message: Copy, arrays: Any) -> Copied:
        """Write a part of a file, where it goes on with what is there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, _ in _files_in(folder):
                if name not in message.files:
                    (folder / name).unlink(missing_ok=True)
            return Copied(file=message.file, size=_add(folder / message.file, message, arrays))
        except OSError as error:
            return Copied(file=message.file, size=0, error=str(error))


def _add(path: Path, message: Copy, arrays: Any) -> int:
    """Add bytes to a copy; return how long it is then."""
    data = np.ascontiguousarray(arrays[0], dtype=np.uint8).data if len(arrays) else memoryview(b"")
    if not len(data) and not path.exists():
        return 0
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if message.offset == 0 and len(data):
            os.ftruncate(file, 0)
        size = os.fstat(file).st_size
        if message.offset != size or not len(data):
            return size
        while len(data):
            data = data[os.pwrite(file, data, size) :]
            size = os.fstat(file).st_size
        if message.ends == size:
            set_length(file, size)
        return size
    finally:
        os.close(file)


def _files_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the files of a copy, and how long they are."""
    for path in folder.glob("*.redo"):
        with suppress(OSError):
            yield path.name, path.stat().st_size


def _read(path: Path, offset: int) -> bytes:
    """Return a part of a file; nothing where it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PART_BYTES)
    except OSError:
        return b""


def fetch_copy(log: RedoLog, line: Channel, meanwhile: Callable[[], None]) -> bool:
    """Get a server's log back from who keeps its copy; False where there is none, or it does not come in time.

    `meanwhile` answers others, who may be waiting for the same of us.
    """
    until_s = time.monotonic() + FETCH_S

    def ask(message: CopyWanted | ReadCopy) -> Envelope | None:
        while time.monotonic() < until_s:
            request, again_s = line.ask(message), time.monotonic() + AGAIN_S
            while time.monotonic() < again_s:
                envelope = line.receive(0.01)
                if envelope is not None and envelope.request == request:
                    return None if isinstance(envelope.message, Refused) else envelope
                meanwhile()
            line.abandon()
        return None

    answer = ask(CopyWanted())
    if answer is None or not answer.message.files:
        return False
    log.folder.mkdir(parents=True, exist_ok=True)
    for name, size in answer.message.files:
        if not FILE.fullmatch(name):
            return False
        with (log.folder / name).open("wb") as file:
            while file.tell() < size:
                part = ask(ReadCopy(file=name, offset=file.tell()))
                if part is None or not len(part.arrays) or not len(part.arrays[0]):
                    return False
                file.write(np.ascontiguousarray(part.arrays[0]).data)
    return True
