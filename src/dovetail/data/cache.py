"""Decoded data on local disk, mapped into memory, up to a size: what was not used for longest goes first.

A part is one file: a header that says what is in it, with a checksum of its own, then plain arrays, each on a multiple
of 64 bytes. A file appears whole or not at all, and its arrays are checked against their checksum once in a process.
All processes of a host that map it share its pages. In a folder that is kept encrypted (`dovetail.encryption`), files
are encrypted as a whole, and each process that reads one has its own copy in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.atomic_file import replace_file, replacing
from dovetail.data.errors import DataError, DataWarning
from dovetail.data.packed import PackedSamples
from dovetail.encryption import EncryptedWriter, decoded, encoded, key_for, read_file

DEFAULT_LIMIT_BYTES = 20 << 30
SUFFIX = ".part"
MAGIC = b"dovetail part 1\n"
ALIGNED = 64
_FRONT = struct.Struct("<16sQQ")  # the magic, the bytes of the header, the header's checksum
_MOST_HEADER = 1 << 24
LOOK_S = 0.02
"""How often whoever waits for another process to decode a part looks whether it has."""
LOOK_SHARE = 64
"""All parts are looked at whenever a process has added so much of the limit, and whenever it may be exceeded."""
LONGEST_S = 300.0
"""How long it waits before it decodes the part itself."""
STALE_S = 3600.0
"""A draft that is older was left behind by a process that was killed."""


class KeptArray(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an array lies in the file of a part."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int


class PartHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file of a part holds."""

    key: str
    num_rows: int
    num_slots: int
    arrays: tuple[KeptArray, ...]
    num_bytes: int
    """Of all arrays, with what lies between them."""
    checksum: int
    bad_by_reason: dict[str, int]
    bad_examples: tuple[tuple[int, str], ...]
    """Broken rows, counted from 0 within the part, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPart:
    """Rows of a file as they were decoded, and which of them are broken."""

    samples: PackedSamples
    bad_by_reason: dict[str, int]
    bad_examples: tuple[tuple[int, str], ...]


def default_folder() -> Path:
    """Return where decoded data are kept unless someone says otherwise: $XDG_CACHE_HOME/dovetail/data."""
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "dovetail" / "data"


_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_checked: set[tuple[int, ...]] = set()  # files of this process whose arrays were checked: device, inode, time, size


class DecodedCache:
    """Parts by key, one file each. Several processes may share the folder."""

    def __init__(self, folder: str | Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.limit_bytes = limit_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._seen_bytes, self._new_bytes = limit_bytes, 0  # of all parts when they were last looked at, and since
        self._has_warned = False
        if limit_bytes < 0:
            raise DataError(f"the cache may take {limit_bytes} bytes", hint="set its limit to 0 or more")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(
                f"the cache folder `{self.folder}` cannot be made: {problem.strerror}", hint="name another with cache="
            ) from None
        self._sweep()

    def __getstate__(self) -> dict[str, object]:
        """Leave out the lock: another process has its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take a new lock."""
        self.__dict__.update(state, _lock=threading.Lock())

    def get(self, key: str) -> KeptPart | None:
        """Return the part kept under `key`, mapped, or None; one that is damaged or foreign is removed, and a miss."""
        path = self._path(key)
        try:
            part = _mapped(path, key)
            with contextlib.suppress(OSError):  # someone else's file: then it is as old as it is
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        except FileNotFoundError:
            self.misses += 1
            return None
        except (OSError, ValueError, TypeError, struct.error, msgspec.DecodeError, DataError):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            self.misses += 1
            return None
        self.hits += 1
        return part

    def put(self, key: str, part: KeptPart) -> bool:
        """Keep a part, and make room for it; say whether limit and disk had room for it."""
        if part.samples.num_bytes > self.limit_bytes:
            return False
        path = self._path(key)
        try:
            with replacing(path) as stream:
                secret = key_for(path)
                out = stream if secret is None else EncryptedWriter(stream, secret, path.name)
                _write(out, key, part)
                if isinstance(out, EncryptedWriter):
                    out.finish()
            facts = path.stat()
            _checked.add(_identity(facts))
        except OSError as problem:
            self._warn(problem)
            return False
        self._make_room(path, facts.st_size)
        return True

    @contextlib.contextmanager
    def decoding(self, key: str) -> Iterator[bool]:
        """Have one process of a host decode a part: say whether this one is to, or has only waited for another.

        One that dies lets go; whoever has waited for long enough goes on all the same.
        """
        path = self.folder / f".{key}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            yield True
            return
        try:
            is_first, deadline_s = True, time.monotonic() + LONGEST_S
            while time.monotonic() < deadline_s:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    is_first = False
                    time.sleep(LOOK_S)
                else:
                    break
            yield is_first
        finally:
            path.unlink(missing_ok=True)  # who waits has it open, and looks for the part before anything else
            os.close(descriptor)

    def get_text(self, key: str) -> str | None:
        """Return a note kept under `key`, or None."""
        try:
            return bytes(read_file(self._note_path(key))).decode("utf-8")
        except (OSError, ValueError):
            return None

    def put_text(self, key: str, text: str) -> None:
        """Keep a note; notes are small and do not count towards the limit."""
        with contextlib.suppress(OSError):
            path = self._note_path(key)
            replace_file(path, encoded(path, text.encode()))

    def num_bytes(self) -> int:
        """Return what all parts take on disk."""
        return sum(size for _, size, _ in self._entries())

    def _warn(self, problem: OSError) -> None:
        """Say once that there is no room, or that the folder cannot be written."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the cache folder `{self.folder}` takes no more decoded data: {problem.strerror}; what it lacks is "
                "decoded anew in every epoch. Make room, or name another folder with the option cache=",
                DataWarning,
                stacklevel=3,
            )

    def _make_room(self, newest: Path, num_bytes: int) -> None:
        """Remove parts, longest unused first, until all fit the limit; the newest, of so many bytes, stays."""
        with self._lock:
            self._new_bytes += num_bytes
            # Others fill the folder too; to look at all parts after each would take longer than to write them.
            most = min(self.limit_bytes - self._seen_bytes, self.limit_bytes // LOOK_SHARE)
            if self._new_bytes <= most:
                return
            entries = sorted(self._entries())
            self._seen_bytes, self._new_bytes = sum(size for _, size, _ in entries), 0
            excess = self._seen_bytes - self.limit_bytes
            for _, size, path in entries:
                if excess <= 0:
                    return
                if path != newest:
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
                        excess -= size
                        self._seen_bytes -= size

    def _entries(self) -> list[tuple[int, int, Path]]:
        """Return (last use, bytes, path) of every part, and of what versions before this one left."""
        found = []
        for path in (*self.folder.glob(f"*{SUFFIX}"), *self.folder.glob("*.npz")):
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                found.append((max(facts.st_atime_ns, facts.st_mtime_ns), facts.st_size, path))
        return found

    def _sweep(self) -> None:
        """Remove drafts that processes left behind when they were killed."""
        for path in self.folder.glob(f".*{SUFFIX}.*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _note_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _write(stream: Any, key: str, part: KeptPart) -> None:
    """Write the file of a part."""
    arrays, end = [], 0
    given = part.samples.arrays()
    for name, array in given.items():
        arrays.append(KeptArray(name=name, kind=array.dtype.str, shape=array.shape, offset=end))
        end += -(-array.nbytes // ALIGNED) * ALIGNED
    header = msgspec.json.encode(
        PartHeader(
            key=key,
            num_rows=part.samples.num_rows,
            num_slots=part.samples.num_slots,
            arrays=tuple(arrays),
            num_bytes=end,
            checksum=_checksum_of(*given.values()),
            bad_by_reason=part.bad_by_reason,
            bad_examples=part.bad_examples,
        )
    )
    front = _FRONT.pack(MAGIC, len(header), _checksum_of(np.frombuffer(header, dtype=np.uint8))) + header
    stream.write(front.ljust(_aligned(len(front)), b"\0"))
    for array in given.values():
        stream.write(_bytes_of(array).data)
        stream.write(b"\0" * (-array.nbytes % ALIGNED))


def _mapped(path: Path, key: str) -> KeptPart:
    """Map the file of a part; raise ValueError where it is not what it should be."""
    with path.open("rb") as opened:
        facts = os.fstat(opened.fileno())
        plain = None if key_for(path) is None else decoded(path, opened.read())
        stream: BinaryIO = opened if plain is None else io.BytesIO(plain)
        magic, length, expected = _FRONT.unpack(stream.read(_FRONT.size))
        if magic != MAGIC or length > _MOST_HEADER:
            raise ValueError("no part")
        text = stream.read(length)
        if _checksum_of(np.frombuffer(text, dtype=np.uint8)) != expected:
            raise ValueError("a damaged header")
        header = msgspec.json.decode(text, type=PartHeader)
        start = _aligned(_FRONT.size + length)
        if header.key != key or (facts.st_size if plain is None else len(plain)) != start + header.num_bytes:
            raise ValueError("another part, or not the whole of it")
        # All of it will be read: its pages are looked up here, at once, and not one by one by whoever makes batches.
        whole = mmap.MAP_SHARED | _POPULATE
        memory = mmap.mmap(opened.fileno(), 0, flags=whole, prot=mmap.PROT_READ) if plain is None else plain
    arrays = {}
    for each in header.arrays:
        kind = np.dtype(each.kind)
        count = int(np.prod(each.shape))
        flat = (
            np.frombuffer(memory, dtype=kind, count=count, offset=start + each.offset) if count else np.empty(0, kind)
        )
        arrays[each.name] = flat.reshape(each.shape)
    if _identity(facts) not in _checked:
        if _checksum_of(*arrays.values()) != header.checksum:
            raise ValueError("damaged arrays")
        _checked.add(_identity(facts))
    samples = PackedSamples.from_arrays(arrays, num_rows=header.num_rows, num_slots=header.num_slots)
    return KeptPart(samples=samples, bad_by_reason=header.bad_by_reason, bad_examples=header.bad_examples)


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size


def _aligned(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED


def _bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


_PRIME = np.uint64(0x9FB21C651E98DF25)


@njit(cache=True, nogil=True)
def checksum(content: NDArray[np.uint8], seed: np.uint64) -> np.uint64:  # pragma: no cover
    """Return a checksum of bytes that follow others with the checksum `seed`: four lanes of xor and multiply."""
    words = content[: content.size // 8 * 8].view(np.uint64)
    a, b, c, d = seed, seed ^ _PRIME, ~seed, seed + _PRIME
    for i in range(0, words.size // 4 * 4, 4):
        a = (a ^ words[i]) * _PRIME
        b = (b ^ words[i + 1]) * _PRIME
        c = (c ^ words[i + 2]) * _PRIME
        d = (d ^ words[i + 3]) * _PRIME
        a ^= a >> np.uint64(29)
        b ^= b >> np.uint64(29)
        c ^= c >> np.uint64(29)
        d ^= d >> np.uint64(29)
    for i in range(words.size // 4 * 4, words.size):
        a = (a ^ words[i]) * _PRIME
        a ^= a >> np.uint64(29)
    for i in range(words.size * 8, content.size):
        b = (b ^ np.uint64(content[i])) * _PRIME
        b ^= b >> np.uint64(29)
    total = np.uint64(content.size) * _PRIME
    for lane in (a, b, c, d):
        total = (total ^ lane) * _PRIME
        total ^= total >> np.uint64(32)
    return total


def _checksum_of(*arrays: NDArray[np.generic]) -> int:
    """Return the checksum of arrays one after the other."""
    total = 0
    for array in arrays:
        total = int(checksum(_bytes_of(array), np.uint64(total)))
    return total
