"""What a server that died left in a ring comes to the file of its log; what nobody needs is removed."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dovetail.runtime.server.redo_content import FACTS_BYTES, RedoDamageError, set_length
from dovetail.runtime.server.redo_ring import DRAFT, HEAD, IN_FILE, MAGIC, PAGE, RING, checked, from_ring
from dovetail.runtime.server.redo_sums import WORD


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
    """Complete a file from a ring."""
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
    """Remove what nobody finished."""
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
    """Write bytes at a place, all of them."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
