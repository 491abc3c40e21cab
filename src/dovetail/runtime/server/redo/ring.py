"""The end of a redo log under way: a ring of memory that outlives its process, and goes to disk from there.

A record is copied into the ring, which is a mapped file: once it is there, the death of the process costs nothing. A
thread writes the ring to the log's file, past the memory in which the operating system keeps files (O_DIRECT) where the
file system can do that. So the same few pages take in everything that is logged: nothing else is driven out of memory,
and memory that was never used before, which is slow to get in a virtual machine, is not asked for.

    88 bytes      DOVETAIL-RING-1, the name of the file whose end it holds, a checksum of that file's facts and of these
    at 96, 104    how much of that is in the file, and how long it is: words with a checksum in their last 16 bits
    from 4,096    byte n of the file at n modulo the size

Both words are written by one store of the processor, so that nobody who dies leaves a part of one.

A ring is in shared memory where the run has a folder there, else beside the log: a file on a disk may have to wait for
its file system. `put_back` completes the file of a server that died.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, Thread

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.server.redo.records import FACTS_BYTES, WORD, RedoDamageError, WordSums, set_length, words_of

RING = "fresh.ring"
DRAFT = ".draft"
"""Of a file that is not whole yet."""
MAGIC = b"DOVETAIL-RING-1\n"
HEAD = struct.Struct("<16s64sI")
IN_FILE, END = 12, 13
"""Which words of the ring say so."""
PAGE = 4096
SIZE = 32 << 20
"""Of a ring; more where records are large."""
AMPLE = 4
"""How many times its size a ring wants to find free in shared memory, which others need as well."""
WRITE_FROM = 8 << 20
"""How much is written to the file at once, at least, where the ring is large: few large writes take less time."""
PARTS = 4
"""How many such writes a ring has room for, at least; a page that is not full stays in it anyway."""
WRITE_MOST = 8 << 20


class MappedRing:
    """A ring, and the thread that writes it to the file whose end it holds."""

    def __init__(self, path: Path, size: int = SIZE) -> None:
        """Make one in the place of another, which is there until this one holds something; OSError: no room."""
        self.path, self.size = path, size
        self._draft: Path | None = self.path.with_suffix(DRAFT)
        self._ring = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._ring, 0, PAGE + size)  # a full disk is then an error, not a SIGBUS
            self._map = mmap.mmap(self._ring, PAGE + size)
        except OSError:
            os.close(self._ring)
            self._draft.unlink()
            raise
        self._words = np.frombuffer(self._map, dtype=np.uint64, offset=PAGE)
        self._marks = np.frombuffer(self._map, dtype=np.uint64, count=PAGE // WORD)
        self._file = self._direct = -1
        self._in_file = self._end = 0
        self._write_from = at_once(size)
        self._disk, self._news = Lock(), Condition()
        self._thread: Thread | None = None
        self._is_closing = False
        self._error: OSError | None = None
        self._thread_s = self._told_s = 0.0

    # -- whose end it holds --------------------------------------------------------------------------------------------

    def attach(self, path: Path, file: int, facts: int, begin: int, tail: bytes) -> None:
        """Hold the end of a file from `begin` on, the start of a page; `tail` is what of it is there."""
        with self._disk:
            self._file, self._direct = file, _open_direct(path)
            self._in_file = self._end = begin
            self._mark(IN_FILE, begin)
            self.write(begin, np.frombuffer(tail, dtype=np.uint8), WordSums())
            self.note_end(begin + len(tail))
            os.pwrite(self._ring, _head(path.name, facts), 0)
        if self._draft is not None:
            self._draft.replace(self.path)
            self._draft = None

    def detach(self) -> None:
        """Write everything to the file, whose length is then right; hold nothing."""
        self._raise_error()
        with self._disk:
            pages = self._end // PAGE * PAGE
            while self._in_file < self._end:
                is_page = self._in_file < pages
                self._write_some(*(self._direct, pages) if is_page else (self._file, self._end))
            os.ftruncate(self._file, self._end)
            set_length(self._file, self._end)
            os.pwrite(self._ring, _head("", 0), 0)
            self._let_go()

    def close(self) -> None:
        """End the thread; what the ring holds stays there."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
        self._let_go()
        os.close(self._ring)
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _let_go(self) -> None:
        if self._direct >= 0:
            os.close(self._direct)
        self._file = self._direct = -1

    # -- what the server does ------------------------------------------------------------------------------------------

    def make_room(self, size: int) -> None:
        """See that so much fits behind the end; OSError where something could not be written."""
        self._raise_error()
        while self._end + size > self._in_file + self.size:
            with self._disk:  # the disk is slower than we are: have the operating system keep some of it
                self._write_some(self._file, self._end // PAGE * PAGE)

    def write(self, at: int, data: NDArray[np.uint8], sums: WordSums) -> None:
        """Write bytes at a place of the file, which is a whole number of words, and add them to checksums."""
        place = at % self.size // WORD
        for words in words_of(data):
            sums.add_copied(words, self._words, place)
            place = (place + len(words)) % len(self._words)

    def note_end(self, end: int) -> None:
        """Note that everything up to there is whole: it survives the end of this process."""
        self._end = end
        self._mark(END, end)
        if end - self._in_file >= self._write_from:
            with self._news:
                self._news.notify()
            if self._thread is None:
                self._thread = Thread(target=self._write_behind, name="redo log", daemon=True)
                self._thread.start()

    def read(self, begin: int, end: int) -> tuple[int, bytes]:
        """Return what of these bytes of the file is here, and where that begins; the rest is in the file."""
        begin = min(max(begin, self._in_file), end)
        return begin, from_ring(memoryview(self._map), begin, end)

    def more_thread_s(self) -> float:
        """Return how long the thread has computed since this was asked last."""
        before, self._told_s = self._told_s, self._thread_s
        return self._told_s - before

    def _mark(self, place: int, value: int) -> None:
        self._marks[place] = checked(value)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- to the file ---------------------------------------------------------------------------------------------------

    def _write_behind(self) -> None:
        """Write whole pages to the file as they come."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_closing or self._end - self._in_file >= self._write_from)
            if self._is_closing:
                return
            try:
                with self._disk:
                    if self._file >= 0:
                        self._write_some(self._direct, self._end // PAGE * PAGE)
            except OSError as error:
                self._error = error
                return
            self._thread_s = time.thread_time()

    def _write_some(self, file: int, end: int) -> None:
        """Write some of what is not in the file, up to `end`; whoever calls has the disk."""
        begin = self._in_file
        place = begin % self.size
        size = min(end - begin, self.size - place, WRITE_MOST)
        if size <= 0:
            return
        data = memoryview(self._map)[PAGE + place : PAGE + place + size]
        try:
            written = os.pwrite(file, data, begin)
        except OSError as error:
            if file == self._file or error.errno != errno.EINVAL:
                raise
            written = os.pwrite(self._file, data, begin)  # it was opened past the memory, and cannot be written so
        self._in_file = begin + (written if begin + written == self._end else written // PAGE * PAGE)
        if self._in_file == begin:
            raise OSError(errno.EIO, f"{written} of {size} bytes were written")
        self._mark(IN_FILE, self._in_file)


def at_once(size: int) -> int:
    """Return how much of a ring of a size waits before it is written to the file."""
    return min(WRITE_FROM, size // PARTS)


def make_ring(paths: Sequence[Path], size: int) -> MappedRing:
    """Return a ring at the first of these paths that has ample room, else at the last; OSError where that has none."""
    for path in paths[:-1]:
        with suppress(OSError):
            space = os.statvfs(path.parent)
            if space.f_bavail * space.f_frsize >= AMPLE * size:
                return MappedRing(path, size)
    return MappedRing(paths[-1], size)


def _head(name: str, facts: int) -> bytes:
    """Return the head of a ring, as far as it does not change with every record."""
    block = HEAD.pack(MAGIC, name.encode(), facts)
    return block + struct.pack("<I", zlib.crc32(block))


def checked(value: int) -> int:
    """Return a number of up to 48 bits as a word that proves itself."""
    return value << 16 | zlib.crc32(struct.pack("<Q", value)) & 0xFFFF


def from_ring(ring: memoryview, begin: int, end: int) -> bytes:
    """Return some bytes of the file out of the ring's."""
    data, size = ring[PAGE:], end - begin
    place = begin % len(data)
    return bytes(data[place : place + size]) + bytes(data[: max(0, place + size - len(data))])


def _open_direct(path: Path) -> int:
    """Return a descriptor that writes past the operating system's memory, where the file system can."""
    try:
        return os.open(path, os.O_WRONLY | getattr(os, "O_DIRECT", 0) | os.O_CLOEXEC)
    except OSError:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def put_back(folder: Path, paths: Sequence[Path]) -> None:
    """Complete the file in a folder whose end one of these rings holds, and remove them.

    RedoDamageError where they do not fit.
    """
    _remove_drafts(folder, paths)
    for path in paths:
        if path.exists():
            _put_back(folder, path)
            path.unlink()


def _put_back(folder: Path, path: Path) -> None:
    try:
        with path.open("rb") as opened:
            ring = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise RedoDamageError(f"{RING} cannot be read: {error}") from None
    name, facts, begin, end = _read_head(ring)
    log = folder / name
    if name and log.exists():
        file = os.open(log, os.O_RDWR | os.O_CLOEXEC)
        try:
            if zlib.crc32(os.pread(file, FACTS_BYTES, 0)) != facts:
                raise RedoDamageError(f"{RING} is of another log")
            _write_all(file, from_ring(ring, begin, end), begin)
            os.ftruncate(file, end)
            set_length(file, end)
        finally:
            os.close(file)


def remove_rings(folder: Path, paths: Sequence[Path]) -> None:
    """Remove rings that nobody needs, and drafts."""
    _remove_drafts(folder, paths)
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _remove_drafts(folder: Path, paths: Sequence[Path]) -> None:
    for path in (*folder.glob(f"*{DRAFT}"), *(path.with_suffix(DRAFT) for path in paths)):
        with suppress(OSError):
            path.unlink()


def _read_head(ring: memoryview) -> tuple[str, int, int, int]:
    """Return what a head says: whose end the ring holds, what the facts of that come to, from where and up to where."""
    if len(ring) > PAGE and zlib.crc32(ring[: HEAD.size]) == struct.unpack_from("<I", ring, HEAD.size)[0]:
        magic, name, facts = HEAD.unpack_from(ring)
        marks = struct.unpack_from("<QQ", ring, IN_FILE * WORD)
        begin, end = (mark >> 16 for mark in marks)
        makes_sense = marks == (checked(begin), checked(end)) and begin <= end <= begin + len(ring) - PAGE
        name = name.rstrip(b"\0")
        if magic == MAGIC and (makes_sense or not name):  # words change while it holds nobody's
            return name.decode("ascii", "replace"), facts, begin, end
    raise RedoDamageError(f"{RING} is damaged")


def _write_all(file: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
