"""Files, wherever they are (local paths, folders, patterns, fsspec addresses), whole or in blocks of lines."""

from __future__ import annotations

import contextlib
import io
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeVar, cast
from urllib.parse import unquote

import fsspec
import fsspec.compression
import fsspec.utils
import numpy as np
import pyarrow as pa

from dovetail.data.errors import DataError

CHUNK_BYTES = 8 << 20
LONGEST_LINE_BYTES = 64 << 20
ZSTD = (".zst", ".zstd")
_NEWLINE = 10
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder's name where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a data set."""

    system: Any
    """The fsspec file system it is on."""
    path: str
    num_bytes: int
    version: str
    """Changes whenever the file does."""

    def __str__(self) -> str:
        """Return the address a user would write."""
        return self.path if self.is_local else str(self.system.unstrip_protocol(self.path))

    @property
    def is_local(self) -> bool:
        """Whether it lies on a disk of this machine."""
        return "file" in _protocols(self.system)

    @property
    def partitions(self) -> dict[str, str | None]:
        """What the folders on the way to it say: `day=2024-01-31` is the column `day`."""
        return partitions_in(self.path.rpartition("/")[0])


def partitions_in(path: str) -> dict[str, str | None]:
    """Return the columns that folders called `name=value` in a path stand for, as Hive writes them."""
    pairs = (word.partition("=") for word in path.split("/") if "=" in word)
    return {unquote(name): None if value == NO_PARTITION else unquote(value) for name, _, value in pairs if name}


def find_files(paths: str | Sequence[str]) -> tuple[DataFile, ...]:
    """Return the files that paths, folders, patterns (`day_*.gz`) and addresses (`s3://...`) name, in order."""
    found: list[DataFile] = []
    for path in [paths] if isinstance(paths, str) else paths:
        with file_errors(path):
            system, inside = fsspec.core.url_to_fs(path)
            names = asked_again(partial(_names, system, inside))
            if not names:
                raise DataError(f"there is no file `{path}`", hint="check the path, or the pattern in it")
            for name in names:
                found.append(asked_again(partial(_known, system, name)))
    if not found:
        raise DataError("no files were named", hint="give at least one path")
    return tuple(found)


def _known(system: Any, name: str) -> DataFile:
    """Return what a file system says of a file."""
    num_bytes = int(system.info(name)["size"] or 0)
    return DataFile(system=system, path=name, num_bytes=num_bytes, version=str(system.ukey(name)))


def partitions_between(paths: str | Sequence[str], files: Sequence[DataFile]) -> tuple[str, ...]:
    """Return the columns that folders stand for, but those that are the same for all files because a path says so."""
    said = [set(partitions_in(path).items()) for path in ([paths] if isinstance(paths, str) else paths)]
    alike = {name for name, value in set.intersection(*said) if not any(sign in (value or "") for sign in "*?[")}
    return tuple(dict.fromkeys(name for file in files for name in file.partitions if name not in alike))


def version_of(file: DataFile) -> str:
    """Return the version that a file has now."""
    with file_errors(str(file)):
        return asked_again(lambda: str(file.system.ukey(file.path)))


def is_packed(file: DataFile) -> bool:
    """Say whether the name of a file says that something has packed it."""
    return file.path.endswith(ZSTD) or fsspec.utils.infer_compression(file.path) is not None


@contextlib.contextmanager
def opened(file: DataFile, *, unpack: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to read; with `unpack`, what `.gz`, `.bz2`, `.xz` and `.zst` names stand for is undone on the way."""
    is_zstd = unpack and file.path.endswith(ZSTD)
    packing = fsspec.utils.infer_compression(file.path) if unpack and not is_zstd else None
    with file_errors(str(file)), contextlib.ExitStack() as stack:
        try:
            raw: Any = file.system.open(file.path, "rb") if file.is_local else in_ranges(file)
            stream = stack.enter_context(raw)
            if packing is not None:
                stream = stack.enter_context(fsspec.compression.compr[packing](stream, mode="r"))
        except (KeyError, ValueError) as problem:
            raise DataError(f"`{file}`: {problem}", hint="install what unpacks it, or unpack it yourself") from None
        yield cast("IO[bytes]", io.BufferedReader(Unpacked(stream), CHUNK_BYTES) if is_zstd else stream)


@contextlib.contextmanager
def opened_by_arrow(file: DataFile) -> Iterator[Any]:
    """Open a file for pyarrow, as it is; one of this machine is read by many threads without a word of Python."""
    if not file.is_local:
        with opened(file, unpack=False) as stream:
            yield stream
        return
    with file_errors(str(file)), pa.OSFile(file.path) as own:
        yield own


T = TypeVar("T")
ATTEMPTS, FIRST_PAUSE_S = 5, 0.2
"""How often a file of another machine is asked for, and how long the first pause is; each is twice the one before."""
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, ImportError)
"""What asking again does not mend."""


def asked_again(ask: Callable[[], T]) -> T:
    """Return what a file system of another machine answers; where a connection fails it is asked again, a few times."""
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except FINAL:
            raise
        except Exception as problem:  # whatever a file system's package raises
            if attempt == ATTEMPTS - 1:
                raise OSError(f"{problem or type(problem).__name__} ({ATTEMPTS} times)") from problem
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise OSError("not asked")


def in_ranges(file: DataFile) -> IO[bytes]:
    """Open a file of another machine; it is read in large ranges."""
    return cast("IO[bytes]", io.BufferedReader(Fetched(file), CHUNK_BYTES))


class Fetched(io.RawIOBase):
    """A file of another machine, opened again where its connection breaks."""

    def __init__(self, file: DataFile) -> None:
        """Open it."""
        self._file, self._place = file, 0
        self._stream: Any = None
        asked_again(self._opened)

    def _opened(self) -> Any:
        """Return the open file, at the byte that is next."""
        if self._stream is None:
            self._stream = self._file.system.open(self._file.path, "rb", block_size=CHUNK_BYTES)
            self._stream.seek(self._place)
        return self._stream

    def _asked(self, ask: Callable[[Any], T]) -> T:
        def once() -> T:
            try:
                return ask(self._opened())
            except BaseException:
                self._close_stream()
                raise

        return asked_again(once)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from anywhere."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something."""
        read: bytes = self._asked(lambda stream: stream.read(len(buffer)))
        buffer[: len(read)] = read
        self._place += len(read)
        return len(read)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte, counted from the first one, from here or from the end."""
        self._place = self._asked(lambda stream: int(stream.seek(place, whence)))
        return self._place

    def tell(self) -> int:
        """Return which byte is next."""
        return self._place

    def close(self) -> None:
        """Close it."""
        self._close_stream()
        super().close()

    def _close_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(Exception):
                self._stream.close()
            self._stream = None


class Unpacked(io.RawIOBase):
    """What a zstd file holds; going back means to begin again."""

    def __init__(self, packed: IO[bytes]) -> None:
        """Begin at the first byte."""
        self._packed, self._place = packed, 0
        self._stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from anywhere."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something."""
        read = self._stream.read(len(buffer))
        buffer[: len(read)] = read
        self._place += len(read)
        return len(read)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte, counted from the first one or from here."""
        if whence == io.SEEK_END:
            raise OSError("where a packed file ends is not known")
        place += self._place if whence == io.SEEK_CUR else 0
        if place < self._place:
            self._packed.seek(0)
            self._place = 0
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._packed, mode="r"), "zstd")
        while self._place < place and (read := self._stream.read(min(CHUNK_BYTES, place - self._place))):
            self._place += len(read)
        return self._place

    def tell(self) -> int:
        """Return which byte is next."""
        return self._place


@contextlib.contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Translate what file systems and unpackers raise."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file `{where}`", hint="check the path") from None
    except PermissionError:
        raise DataError(f"`{where}` may not be read", hint="check its permissions") from None
    except IsADirectoryError:
        raise DataError(f"`{where}` is a folder", hint="name the files in it") from None
    except EOFError:
        raise DataError(f"`{where}` ends too early", hint="it was cut off: copy or download it again") from None
    except (zlib.error, OSError) as problem:
        raise DataError(f"`{where}` cannot be read: {problem}", hint="is it damaged, or misnamed?") from None
    except ImportError as problem:
        raise DataError(f"`{where}`: {problem}", hint="install the package that fsspec asks for") from None
    except ValueError as problem:
        raise DataError(f"`{where}`: {problem}", hint="fsspec knows file://, s3://, gs://, http:// and more") from None


def _names(system: Any, path: str) -> list[str]:
    """Return the files that a path, a folder or a pattern names, hidden ones left out."""
    if any(sign in path for sign in "*?[") and not system.exists(path):
        names = system.glob(path)
    elif system.isdir(path):
        names = system.find(path)
    else:
        names = [path] if system.exists(path) else []
    kept = (name for name in names if not name.rsplit("/", 1)[-1].startswith((".", "_")))
    return sorted(name for name in kept if not system.isdir(name))


def _protocols(system: Any) -> tuple[str, ...]:
    """Return the protocols a file system answers to."""
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def line_blocks(
    stream: IO[bytes], *, where: str, place: int = 0, lines_per_block: int
) -> Iterator[tuple[int, bytes, int]]:
    """Yield (place, text, number of lines) from `place` on; a place is a byte in the unpacked text.

    Every text ends in a newline; one is added where the file's last line has none.
    """
    if place:
        stream.seek(place)
    rest = b""
    while chunk := stream.read(CHUNK_BYTES):
        rest += chunk
        ends = np.flatnonzero(np.frombuffer(rest, dtype=np.uint8) == _NEWLINE)
        begin = 0
        for end in ends[lines_per_block - 1 :: lines_per_block]:
            text = rest[begin : int(end) + 1]
            yield place, text, lines_per_block
            place += len(text)
            begin = int(end) + 1
        rest = rest[begin:]
        if not ends.size and len(rest) > LONGEST_LINE_BYTES:
            raise DataError(
                f"`{where}` has a line of more than {LONGEST_LINE_BYTES >> 20} MiB", hint="is it a text file at all?"
            )
    if rest:
        text = rest if rest.endswith(b"\n") else rest + b"\n"
        yield place, text, text.count(b"\n")
