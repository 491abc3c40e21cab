"""Shared memory for the arrays of one caller: a mapped file, its first half for requests, its second for answers.

The caller makes, owns, locks and removes the file; the listener maps it when an envelope first refers to it. Pages are
reserved before they are written (a full file system is then an error, not a SIGBUS) and only as far as they are used.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from dovetail.transport.arrays import NAMES, Array, ArrayClaim, Sendable, Unwritten
from dovetail.transport.errors import WireError

LANE_NAME = re.compile(r"(?P<owner>[A-Za-z0-9_.-]{1,64})-(?P<pid>[0-9]{1,10})-[0-9a-f]{16}\.lane")
ALIGNMENT_BYTES = 64
RESERVE_BYTES = 1 << 20
"""Space is reserved in steps of this many bytes."""
SMALLEST_BYTES = 4 << 10
"""Below this, frames are as fast as shared memory: to and fro over a Unix socket on 2 cores (x86, 2026), 2 KiB take
0.12 ms either way, 16 KiB 0.16 ms in frames, which are encrypted, and 0.12 ms in a lane."""


class SharedMemoryFile:
    """A mapped lane, seen from the side that writes at `writes_at` and reads at `reads_at`."""

    def __init__(self, name: str, descriptor: int, *, is_owner: bool) -> None:
        """Map the open file `descriptor`, which is closed when nobody holds the lane any more."""
        self.name = name
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._file_bytes = os.fstat(descriptor).st_size
        self._half_bytes = self._file_bytes // 2
        self._reads_at, self._writes_at = (self._half_bytes, 0) if is_owner else (0, self._half_bytes)
        self._reserved_bytes = 0
        self._map = mmap.mmap(descriptor, self._file_bytes)

    def place(self, arrays: Sequence[Sendable]) -> list[int] | None:
        """Write arrays and return where each is, or None where they do not fit, do not travel or no space is left."""
        offsets = []
        end = self._writes_at
        for array in arrays:
            offsets.append(end)
            end += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if end > self._writes_at + self._half_bytes or any(array.dtype not in NAMES for array in arrays):
            return None
        if not self._reserve(end - self._writes_at):
            return None
        for array, offset in zip(arrays, offsets, strict=True):
            place: Array = np.ndarray(array.shape, array.dtype, self._map, offset)
            if isinstance(array, Unwritten):
                array.write(place)
            else:
                place[...] = array
        return offsets

    def memory(self) -> Array:
        """Return all of it, as bytes."""
        return np.frombuffer(self._map, dtype=np.uint8)

    def views(self, claims: Sequence[ArrayClaim], offsets: Sequence[int]) -> tuple[Array, ...]:
        """Return read-only views of what the other side wrote, or raise `WireError` where it cannot be there."""
        if len(claims) != len(offsets):
            raise WireError(f"a message has {len(claims)} arrays and {len(offsets)} places in shared memory")
        if not self._is_whole():
            raise WireError(f"the lane {self.name} was cut short")
        last = self._reads_at + self._half_bytes
        for claim, offset in zip(claims, offsets, strict=True):
            nbytes = claim.nbytes()
            if offset % ALIGNMENT_BYTES or offset < self._reads_at or offset + nbytes > last:
                raise WireError(f"{nbytes} bytes at {offset} are outside {self._reads_at}..{last} of {self.name}")
        return tuple(claim.over(self._map, offset) for claim, offset in zip(claims, offsets, strict=True))

    def is_removed(self) -> bool:
        """Return whether the owner has removed the file."""
        return os.fstat(self._descriptor).st_nlink == 0

    def _is_whole(self) -> bool:
        """Return whether the file is as long as it was when it was mapped: to read beyond its end would be fatal."""
        return os.fstat(self._descriptor).st_size == self._file_bytes

    def _reserve(self, nbytes: int) -> bool:
        """Make sure of the first `nbytes` of the half we write to."""
        if not self._is_whole():
            return False
        if nbytes <= self._reserved_bytes:
            return True
        wanted = min(self._half_bytes, -(-nbytes // RESERVE_BYTES) * RESERVE_BYTES)
        try:
            os.posix_fallocate(self._descriptor, self._writes_at, wanted)
        except OSError:
            return False
        self._reserved_bytes = wanted
        return True


def make_shared_memory(folder: Path, owner: str, half_bytes: int) -> SharedMemoryFile | None:
    """Return a new lane of two halves, or None where the folder's file system has no room for it."""
    half_bytes = -(-half_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    name = f"{owner}-{os.getpid()}-{secrets.token_hex(8)}.lane"
    try:
        space = os.statvfs(folder)
        if space.f_bavail * space.f_frsize < 2 * half_bytes:
            return None
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 2 * half_bytes)
        is_ours = os.fstat(descriptor).st_nlink > 0
    except OSError:
        is_ours = False
    if not is_ours:  # swept before it was locked
        os.close(descriptor)
        return None
    return SharedMemoryFile(name, descriptor, is_owner=True)


def open_shared_memory(folder: Path, name: str) -> SharedMemoryFile:
    """Return somebody else's lane, or raise `WireError` where the file is not one."""
    if not LANE_NAME.fullmatch(name):
        raise WireError(f"{name[:100]!r} is not the name of a lane")
    try:
        # No link may lead out of the folder, and nothing that is no file may make us wait.
        descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise WireError(f"the lane {name} cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    half_bytes, odd = divmod(status.st_size, 2)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(descriptor)
        raise WireError(f"the lane {name} is not a private file of ours")
    if odd or half_bytes == 0 or half_bytes % mmap.PAGESIZE:
        os.close(descriptor)
        raise WireError(f"the lane {name} has {status.st_size} bytes, which is no lane's size")
    return SharedMemoryFile(name, descriptor, is_owner=False)


class SharedMemoryFiles:
    """The lanes of all callers of a listener: mapped once, the least used one put away for a new one."""

    def __init__(
        self, folder: Path, *, most: int = 256, on_lane: Callable[[SharedMemoryFile], None] = lambda _: None
    ) -> None:
        """Keep at most this many mapped; `on_lane` is called with every new one."""
        self._folder, self._most, self._on_lane = folder, most, on_lane
        self._lanes: dict[str, SharedMemoryFile] = {}

    def find(self, name: str, owner: str) -> SharedMemoryFile:
        """Return the lane of this name, or raise `WireError` where there is none or `owner` has not made it."""
        match = LANE_NAME.fullmatch(name)
        if match is not None and match["owner"] != owner:
            raise WireError(f"the lane {name} is not one of {owner}")
        lane = self._lanes.pop(name, None) or self._open(name)
        self._lanes[name] = lane  # Last in order: the most recently used.
        return lane

    def _open(self, name: str) -> SharedMemoryFile:
        """Map a new lane, and let go of those whose owner is gone: their memory is only freed with the last map."""
        lane = open_shared_memory(self._folder, name)
        for other in [other for other in self._lanes.values() if other.is_removed()]:
            del self._lanes[other.name]
        while len(self._lanes) >= self._most:
            del self._lanes[next(iter(self._lanes))]
        self._on_lane(lane)
        return lane

    def close(self) -> None:
        """Let go of all lanes; an envelope that is still held keeps its own."""
        self._lanes.clear()


def sweep(folder: Path) -> list[str]:
    """Remove the lanes of processes that are gone, and return their names: an owner locks its lane while it lives."""
    swept = []
    for path in folder.glob("*.lane"):
        if LANE_NAME.fullmatch(path.name) is None:
            continue
        with suppress(OSError):  # locked, or gone in the same moment
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                swept.append(path.name)
            finally:
                os.close(descriptor)
    return swept
