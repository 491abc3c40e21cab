"""One file of a server's redo log as it is written: record by record, the last ones in a ring beside it.

`records` says what is in a file, `ring` how it gets to the disk. Nothing is flushed: a process that is killed
loses nothing of what it wrote, a machine without power may.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.encryption import encrypted, key_for
from dovetail.runtime.server.redo.records import (
    BEGIN,
    CHAINED,
    FACTS_BYTES,
    HEAD,
    OPEN,
    RECORD,
    Arrays,
    Content,
    LogFacts,
    RecordKind,
    WordSums,
    facts_block,
    joined,
    known_as,
    length_block,
    padded,
    parts_of,
    set_length,
)
from dovetail.runtime.server.redo.ring import DRAFT, PAGE, RING, SIZE, MappedRing, make_ring


class RedoFile:
    """A file that is appended to, and then finished."""

    def __init__(self, path: Path, facts: LogFacts, file: int, size: int, chain: int, rings: Sequence[Path]) -> None:
        """Keep an open file that is finished, and where its ring may be; `make` and `reopen` return these."""
        self.path, self.facts, self.size = path, facts, size
        self._file, self._chain = file, chain
        self._ring: MappedRing | None = None
        self._rings = rings or (path.parent / RING,)

    @classmethod
    def make(cls, path: Path, facts: LogFacts, rings: Sequence[Path] = ()) -> RedoFile:
        """Begin a file, in the place of one that may be there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft, block = path.with_suffix(DRAFT), facts_block(facts)
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, block + length_block(BEGIN), 0)
            draft.replace(path)
        except OSError:
            os.close(file)
            raise
        return cls(path, facts, file, BEGIN, zlib.crc32(block), rings)

    @classmethod
    def reopen(cls, path: Path, content: Content, rings: Sequence[Path] = ()) -> RedoFile:
        """Return a file that was read, up to its last whole record."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(file, content.size)
            set_length(file, content.size)
        except OSError:
            os.close(file)
            raise
        return cls(path, content.facts, file, content.size, content.chain, rings)

    def take(self, ring: MappedRing) -> None:
        """Go on by way of a ring that holds nothing."""
        begin = self.size // PAGE * PAGE
        block = os.pread(self._file, BEGIN, 0)
        tail = bytearray(os.pread(self._file, self.size - begin, begin))
        if not begin:
            tail[FACTS_BYTES:BEGIN] = length_block(OPEN)
        self._ring = ring
        ring.attach(self.path, self._file, zlib.crc32(block[:FACTS_BYTES]), begin, bytes(tail))
        set_length(self._file, OPEN)

    def finish(self) -> MappedRing | None:
        """Bring everything into the file; return the ring, which is free for another."""
        ring = self._ring
        if ring is not None:
            ring.detach()
        self._ring = None
        return ring

    def append(
        self, kind: RecordKind, number: int, generation: int, details: dict[str, Any], arrays: Arrays = ()
    ) -> None:
        """Append a record, which survives the end of this process; OSError where there is no room."""
        parts, length = parts_of(details, arrays)
        if (key := key_for(self.path)) is not None:
            body = encrypted(key, known_as(self.facts, self.size, kind, number), joined(parts, length))
            parts, length = [np.frombuffer(body, dtype=np.uint8)], len(body)
        ring = self._ring_for(HEAD.size + length)
        at, sums = self.size + HEAD.size, WordSums()
        for part in parts:
            ring.write(at, part, sums)
            at += padded(len(part))
        head = HEAD.pack(RECORD, kind, number, generation, length, *sums.both, 0, 0)[:CHAINED]
        self._chain = zlib.crc32(head, self._chain)
        ring.write(self.size, np.frombuffer(head + struct.pack("<I", self._chain), dtype=np.uint8), WordSums())
        self.size = at
        ring.note_end(at)

    def _ring_for(self, size: int) -> MappedRing:
        """Return a ring with room for so much."""
        ring = self._ring
        if ring is None or 2 * size > ring.size:
            if ring is not None and self.finish():
                ring.close()
                ring.path.unlink()
            ring = make_ring(self._rings, max(SIZE, (2 * size + PAGE) // PAGE * PAGE))
            self.take(ring)
        ring.make_room(size)
        return ring

    def more_thread_s(self) -> float:
        """Return how long a thread has computed for this file since this was asked last."""
        return 0.0 if self._ring is None else self._ring.more_thread_s()

    def bytes_from(self, offset: int, most: int) -> bytes:
        """Return some of the file, from an offset up to its end."""
        end = min(self.size, offset + most)
        begin, fresh = (end, b"") if self._ring is None else self._ring.read(offset, end)
        return os.pread(self._file, begin - offset, offset) + fresh

    def close(self) -> None:
        """Close the file as it is: what the ring has of it stays there."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        os.close(self._file)
