"""Files, wherever they are (local paths, folders, patterns, fsspec addresses), whole or in blocks of lines."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast
from urllib.parse import unquote

import fsspec.compression
import fsspec.utils
import numpy as np
import pyarrow as pa

from dovetail.data.errors import DataError
from dovetail.data.files.remote import (
    Fetched,
    UnreachableError,
    asked_again,
    fetchers,
    files_below,
    is_web,
    known,
    matching,
    protocols,
    system_of,
    version_in,
)

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
        return "file" in protocols(self.system)

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
            system, inside = system_of(path)
            names = _names(system, inside)
            if not names and system.isdir(inside):
                raise DataError(f"the folder `{path}` has no files in it", hint="give the folder that holds the data")
            if not names:
                raise DataError(f"there is no file `{path}`", hint="check the path, or the pattern in it")
            ask = map if "file" in protocols(system) else fetchers().map
            found += ask(partial(_file, system), names)
    if not found:
        raise DataError("no files were named", hint="give at least one path")
    return tuple(found)


def _file(system: Any, name: str) -> DataFile:
    """Return what a file system says of a file."""
    info = asked_again(lambda: system.info(name))
    num_bytes = int(info["size"] or 0)
    return DataFile(system=system, path=name, num_bytes=num_bytes, version=version_in(system, name, info))


def partitions_between(paths: str | Sequence[str], files: Sequence[DataFile]) -> tuple[str, ...]:
    """Return the columns that folders stand for, but those that are the same for all files because a path says so."""
    said = [set(partitions_in(path).items()) for path in ([paths] if isinstance(paths, str) else paths)]
    alike = {name for name, value in set.intersection(*said) if not any(sign in (value or "") for sign in "*?[")}
    return tuple(dict.fromkeys(name for file in files for name in file.partitions if name not in alike))


def version_of(file: DataFile) -> str:
    """Return the version that a file has now."""
    with file_errors(str(file)):
        file.system.invalidate_cache(file.path)
        return version_in(file.system, file.path)


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
            raw: Any = file.system.open(file.path, "rb") if file.is_local else _fetched(file)
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
        with file_errors(str(file)), Fetched(file, reads_on=False) as stream:
            yield stream
        return
    with file_errors(str(file)), pa.OSFile(file.path) as own:
        yield own


def _fetched(file: DataFile) -> IO[bytes]:
    """Open a file of another machine, which is read from its beginning to its end."""
    return cast("IO[bytes]", io.BufferedReader(Fetched(file, reads_on=True), CHUNK_BYTES))


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
    except UnreachableError as problem:
        raise DataError(
            f"`{where}` cannot be read: {problem}", hint="check the address, and whether its server answers, then go on"
        ) from None
    except (zlib.error, OSError) as problem:
        raise DataError(f"`{where}` cannot be read: {problem}", hint="is it damaged, or misnamed?") from None
    except ImportError as problem:
        raise DataError(f"`{where}`: {problem}", hint="install the package that fsspec asks for") from None
    except ValueError as problem:
        raise DataError(f"`{where}`: {problem}", hint="fsspec knows file://, s3://, gs://, http:// and more") from None


def _names(system: Any, path: str) -> list[str]:
    """Return the files that a path, a folder or a pattern names, hidden ones left out."""
    signs = "*[" if is_web(system) else "*?["
    if any(sign in path for sign in signs) and (is_web(system) or known(system, path) is None):
        names = matching(system, path)
    elif is_folder(system, path):
        names = files_below(system, path)
    else:
        names = [path] if known(system, path) is not None else []
    return sorted(name for name in names if not name.rsplit("/", 1)[-1].startswith((".", "_")))


def is_folder(system: Any, path: str) -> bool:
    """Say whether a path is a folder; that of a web server ends in a slash."""
    return path.endswith("/") if is_web(system) else asked_again(lambda: bool(system.isdir(path)))


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
