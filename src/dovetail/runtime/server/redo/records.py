"""One file of a server's redo log as it is read: records, their checksums, and what its shard took in.

    1,008 bytes   DOVETAIL-REDO-1, then JSON with a checksum: whose log it is and where it begins, and spaces
    16 bytes      how long the file is at least, and a checksum of that
    records       each a head of 56 bytes and a body, padded to 8 bytes

A head holds checksums of its body and of itself and the head before, so a record that is another, elsewhere or missing
in the middle is found; one that is missing at the end is found by the length. While a file is written, its last records
are in the ring beside it (`ring`), and its length says so: without the ring it is refused.

Where the log's folder is kept encrypted (`dovetail.encryption`) each body is. Whose log it is in, and
where, is authenticated with it.

The checksum of a record: two sums over its 8-byte words, the second weighted by their places. A word that is another
changes the first, words in another order change the second. It takes a sixth of CRC-32's time, and no pass of its own
over what is written.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.encryption import decoded
from dovetail.runtime.sealed import CHECKSUM, checksum_of_value

WORD = 8
Words = NDArray[np.uint64]


class WordSums:
    """Sums over words one after the other."""

    def __init__(self) -> None:
        self._count = 0
        self._plain = self._weighted = 0

    def add(self, words: Words) -> None:
        """Add words."""
        self._count_in(len(words), sum_words(words, self._count))

    def add_copied(self, words: Words, ring: Words, place: int) -> None:
        """Copy words into a ring from a place on, and add them."""
        self._count_in(len(words), copy_words(words, ring, place, self._count))

    def _count_in(self, count: int, sums: tuple[Any, Any]) -> None:
        plain, weighted = sums
        self._count += count
        self._plain = (self._plain + int(plain)) % (1 << 64)
        self._weighted = (self._weighted + int(weighted)) % (1 << 64)

    @property
    def both(self) -> tuple[int, int]:
        """Return both sums."""
        return self._plain, self._weighted


def sums_of(buffer: Any) -> tuple[int, int]:
    """Return the sums of one buffer."""
    sums = WordSums()
    for words in words_of(np.frombuffer(buffer, dtype=np.uint8)):
        sums.add(words)
    return sums.both


def words_of(data: NDArray[np.uint8]) -> list[Words]:
    """Return bytes as words, the last one filled up with zeros."""
    whole = len(data) // WORD * WORD
    words = [data[:whole].view(np.uint64)]
    if whole < len(data):
        words.append(np.frombuffer(data[whole:].tobytes().ljust(WORD, b"\0"), dtype=np.uint64))
    return words


@njit(cache=True, nogil=True)
def sum_words(words, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the sum of words, and that of words times their places, of which so many come before."""
    plain = np.uint64(0)
    weighted = np.uint64(0)
    place = np.uint64(before)
    for i in range(len(words)):
        place += np.uint64(1)
        plain += words[i]
        weighted += place * words[i]
    return plain, weighted


@njit(cache=True, nogil=True)
def copy_straight(words, to, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the same of words that are copied one after the other."""
    plain = np.uint64(0)
    weighted = np.uint64(0)
    place = np.uint64(before)
    for i in range(len(words)):
        word = words[i]
        to[i] = word
        place += np.uint64(1)
        plain += word
        weighted += place * word
    return plain, weighted


@njit(cache=True, nogil=True)
def copy_words(words, ring, begin, before):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the same of words that are copied into a ring, from a place on and round."""
    until_end = min(len(words), len(ring) - begin)
    plain, weighted = copy_straight(words[:until_end], ring[begin:], before)
    more_plain, more_weighted = copy_straight(words[until_end:], ring, before + until_end)
    return plain + more_plain, weighted + more_weighted


MAGIC = b"DOVETAIL-REDO-1\n"
FACTS_BYTES = 1008
LENGTH = struct.Struct("<QII")
BEGIN = FACTS_BYTES + LENGTH.size
HEAD = struct.Struct("<4sIqqQQQII")
CHAINED = HEAD.size - 4
RECORD = b"REDO"
PAD = 8
OPEN = (1 << 63) - 1
"""The length of a file that is being written."""

Arrays = Sequence[NDArray[Any]]


class RedoDamageError(ValueError):
    """A log is not what was written, or another's."""


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log a file belongs to, and where it begins."""

    run: str
    """Checksum of the blueprint."""
    server: int
    num_servers: int
    era: int
    """The generation that took up the checkpoint from which everything comes."""
    first: int
    """Steps (in ssp and async, tasks) that were applied before: a checkpoint of as many may be there."""
    position: int
    """Samples that count before, in sync."""
    next_task: int = 0
    """In ssp and async: every task below this number was applied before."""


class RecordKind(IntEnum):
    """What a record holds."""

    SUMS = 1
    """The summed gradients of a whole step, which may come to count."""
    COMMIT = 2
    """The step counts: how its sums are applied."""
    TASK = 3
    """In ssp and async: the gradients of a task, and how they are applied."""
    KEPT_BACK = 4
    """What workers that left kept back of dense gradients, which is in the next step: `all` of it, or another one's."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record; `number` is a step's or a task's."""

    kind: RecordKind
    number: int
    generation: int
    details: dict[str, Any]
    arrays: list[NDArray[Any]]


class Content:
    """A file that was read and found whole: its facts, and its records as views of it."""

    def __init__(self, path: Path) -> None:
        """Read the file; RedoDamageError where it is not what was written."""
        try:
            with path.open("rb") as file:
                self._map: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise RedoDamageError(f"{path.name} cannot be read: {error}") from None
        self.path = path
        self.facts, least = self._header()
        self.chain = zlib.crc32(self._map[:FACTS_BYTES])
        self._heads: list[tuple[int, int, int, int, int]] = []
        self.size = self._find_records(least)

    def _header(self) -> tuple[LogFacts, int]:
        """Return the facts, and how long the file is at least."""
        block = bytes(self._map[:BEGIN])
        if len(block) < BEGIN or not block.startswith(MAGIC):
            raise RedoDamageError(f"{self.path.name} is no redo log, or was cut short")
        try:
            table = msgspec.json.decode(block[len(MAGIC) : FACTS_BYTES])
            checksum = table.pop(CHECKSUM, "") if isinstance(table, dict) else ""
            if checksum != checksum_of_value(table) or block[:FACTS_BYTES] != facts_block(facts := _facts(table)):
                raise ValueError
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise RedoDamageError(f"{self.path.name} has a damaged header") from None
        least, checksum_of_length, zero = LENGTH.unpack(block[FACTS_BYTES:])
        if zero or checksum_of_length != zlib.crc32(block[FACTS_BYTES : FACTS_BYTES + 8]):
            raise RedoDamageError(f"{self.path.name} has a damaged length")
        return facts, least

    def _find_records(self, least: int) -> int:
        """Check every record; return where the last whole one ends."""
        view, at = memoryview(self._map), BEGIN
        if least == OPEN:
            raise RedoDamageError(f"{self.path.name} was cut short: the end of it is missing")
        if least > len(view):
            raise RedoDamageError(f"{self.path.name} was cut short: {len(view)} of at least {least} bytes are there")
        while at < len(view):
            head = bytes(view[at : at + HEAD.size])
            whole = len(head) == HEAD.size
            magic, kind, number, generation, length, *sums, _, chain = HEAD.unpack(head.ljust(HEAD.size))
            body = view[at + HEAD.size : at + HEAD.size + length] if whole and length < len(view) else view[:0]
            expected = zlib.crc32(head[:CHAINED], self.chain)
            if magic != RECORD or chain != expected or len(body) != length or sums_of(body) != tuple(sums):
                break
            self._heads.append((kind, number, generation, at + HEAD.size, length))
            self.chain, at = chain, at + HEAD.size + length
        if at < least:
            raise RedoDamageError(f"{self.path.name} is damaged after byte {at}")
        return at

    def records(self) -> Iterator[LogRecord]:
        """Yield the records; their arrays are views that hold as long as this does."""
        for kind, number, generation, begin, length in self._heads:
            view = memoryview(self._map)[begin : begin + length]
            try:
                body = decoded(self.path, view, name=known_as(self.facts, begin - HEAD.size, RecordKind(kind), number))
                view = view if body is view else memoryview(bytearray(body))
                yield LogRecord(RecordKind(kind), number, generation, *_read_body(view))
            except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
                raise RedoDamageError(f"{self.path.name} makes no sense: {error}") from None


def facts_block(facts: LogFacts) -> bytes:
    """Return the first block of a file."""
    table = msgspec.to_builtins(facts)
    text = MAGIC + msgspec.json.encode({**table, CHECKSUM: checksum_of_value(table)})
    return text.ljust(FACTS_BYTES - 1) + b"\n"


def _facts(table: dict[str, Any]) -> LogFacts:
    return msgspec.convert(table, LogFacts)


def length_block(size: int) -> bytes:
    """Return the second block of a file."""
    number = struct.pack("<Q", size)
    return LENGTH.pack(size, zlib.crc32(number), 0)


def set_length(file: int, size: int) -> None:
    """Note in an open file how long it is at least."""
    os.pwrite(file, length_block(size), FACTS_BYTES)


def parts_of(details: dict[str, Any], arrays: Arrays) -> tuple[list[NDArray[np.uint8]], int]:
    """Return the parts of a body as bytes, and how long they are together, each padded."""
    text = msgspec.msgpack.encode((details, [(array.dtype.str, array.shape) for array in arrays]))
    parts = [np.frombuffer(struct.pack("<I", len(text)) + text, dtype=np.uint8)]
    parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays if array.size]
    return parts, sum(padded(len(part)) for part in parts)


def joined(parts: Sequence[NDArray[np.uint8]], length: int) -> bytearray:
    """Return the parts of a body one after the other, each padded."""
    body, at = bytearray(length), 0
    for part in parts:
        body[at : at + len(part)] = part.data
        at += padded(len(part))
    return body


def known_as(facts: LogFacts, place: int, kind: RecordKind, number: int) -> str:
    """Return the name of an encrypted record: in which log it is, where, and what."""
    return f"{facts.run}/server-{facts.server}/{facts.era}/{facts.first}/{place}/{kind.value}/{number}"


def padded(size: int) -> int:
    """Return how much room so many bytes take."""
    return size + -size % PAD


def _read_body(view: memoryview) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    (length,) = struct.unpack_from("<I", view)
    details, shapes = msgspec.msgpack.decode(view[4 : 4 + length], type=tuple[dict[str, Any], list[Any]])
    at = 4 + length
    arrays = []
    for kind, shape in shapes:
        at += -at % PAD
        dtype, count = np.dtype(kind), int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(view, dtype, count, at).reshape(shape))
        at += dtype.itemsize * count
    return details, arrays
