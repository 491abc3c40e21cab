"""Files, wherever they are (local paths, folders, patterns, fsspec addresses), whole or in blocks of lines."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import fsspec
import fsspec.utils
import numpy as np

from dovetail.data.errors import DataError

CHUNK_BYTES = 8 << 20
LONGEST_LINE_BYTES = 64 << 20
_NEWLINE = 10


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
        return str(self.system.unstrip_protocol(self.path)) if "file" not in _protocols(self.system) else self.path


def find_files(paths: str | Sequence[str]) -> tuple[DataFile, ...]:
    """Return the files that paths, folders, patterns (`day_*.gz`) and addresses (`s3://...`) name, in order."""
    found: list[DataFile] = []
    for path in [paths] if isinstance(paths, str) else paths:
        with file_errors(path):
            system, inside = fsspec.core.url_to_fs(path)
            names = _names(system, inside)
            if not names:
                raise DataError(f"there is no file `{path}`", hint="check the path, or the pattern in it")
            for name in names:
                info = system.info(name)
                found.append(
                    DataFile(system=system, path=name, num_bytes=int(info["size"] or 0), version=str(system.ukey(name)))
                )
    if not found:
        raise DataError("no files were named", hint="give at least one path")
    return tuple(found)


@contextlib.contextmanager
def opened(file: DataFile, *, unpack: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to read; with `unpack`, what `.gz`, `.bz2`, `.xz` and `.zst` names stand for is undone on the way."""
    packing = fsspec.utils.infer_compression(file.path) if unpack else None
    with file_errors(str(file)), contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(fsspec.core.OpenFile(file.system, file.path, "rb", compression=packing))
        except ValueError as problem:
            raise DataError(f"`{file}`: {problem}", hint="install what unpacks it, or unpack it yourself") from None
        yield cast("IO[bytes]", stream)


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
