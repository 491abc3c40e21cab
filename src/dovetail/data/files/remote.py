"""Files of other machines: asked for again where a connection breaks, and read in large ranges, several at once."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import fsspec
import fsspec.utils

FIRST_BYTES, RANGE_BYTES = 1 << 20, 8 << 20
"""Of a file's first range, as its beginning may be all that is wanted, and of those that follow."""
AHEAD = 4
"""How many ranges are fetched at once for who reads on and on."""
FETCHERS = 16
FETCHER_NAME = "dovetail-fetch"
ATTEMPTS, FIRST_PAUSE_S = 5, 0.2
"""How often something is asked for, and how long the first pause is; each is twice the one before."""
PATIENCE_S = 60.0
"""How long a web server may say nothing before that counts as a broken connection."""
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, ImportError)
"""What asking again does not mend."""
WEB = ("http", "https")
TAGS = ("ETag", "etag", "md5Hash", "generation", "content_md5", "Content-MD5", "Digest", "Last-Modified")
"""What stores call that by which they tell versions of a file apart, the best first."""
WHOLE_ONLY = "range requests"
"""What fsspec's complaint about a web server that gives no parts of files is known by."""

T = TypeVar("T")


class RemoteFile(Protocol):
    """What has to be known of a file to fetch it."""

    @property
    def system(self) -> Any:
        """The fsspec file system it is on."""
        ...

    @property
    def path(self) -> str:
        """Where it is there."""
        ...

    @property
    def num_bytes(self) -> int:
        """Its size; 0 where nobody says."""
        ...

    @property
    def version(self) -> str:
        """Changes whenever the file does."""
        ...


def system_of(path: str) -> tuple[Any, str]:
    """Return the fsspec file system that an address is on, and the path there."""
    options: dict[str, Any] = {}
    if path.startswith(tuple(f"{each}://" for each in WEB)):
        with contextlib.suppress(ImportError):  # fsspec says so better
            from aiohttp import ClientTimeout  # noqa: PLC0415 - only who reads from the web has it

            options = {
                "client_kwargs": {"timeout": ClientTimeout(total=None, connect=PATIENCE_S, sock_read=PATIENCE_S)}
            }
    system, inside = fsspec.core.url_to_fs(path, **options)
    return system, inside


def protocols(system: Any) -> tuple[str, ...]:
    """Return the protocols a file system answers to."""
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def is_web(system: Any) -> bool:
    """Say whether a file system is a web server: it does not know folders, and looks at all of a file to find out."""
    return any(each in WEB for each in protocols(system))


class UnreachableError(OSError):
    """What was asked for did not come, however often it was asked for."""


def asked_again(ask: Callable[[], T]) -> T:
    """Return what a file system answers; where a connection fails it is asked again, a few times."""
    for attempt in range(ATTEMPTS):
        try:
            return ask()
        except Exception as problem:  # whatever a file system's package raises
            found = _reason(problem)
            if isinstance(found, FINAL):
                raise found from problem
            if attempt == ATTEMPTS - 1:
                raise UnreachableError(f"{found or type(found).__name__} ({ATTEMPTS} times)") from problem
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise UnreachableError("not asked")


def _reason(problem: Exception) -> Exception:
    """Return what went wrong: fsspec calls whatever a web server answers a file that is not there."""
    cause = problem.__cause__ if isinstance(problem, FileNotFoundError) else problem
    status = getattr(cause, "status", None)
    if status in (401, 403):
        return PermissionError(str(cause))
    if status in (404, 410):
        return FileNotFoundError(str(cause))
    is_of_the_web = cause is not None and type(cause).__module__.partition(".")[0] == "aiohttp"
    return cause if is_of_the_web and isinstance(cause, Exception) else problem


def known(system: Any, path: str) -> dict[str, Any] | None:
    """Return what a file system says of a path; None where there is nothing."""
    try:
        found: dict[str, Any] = asked_again(lambda: system.info(path))
    except FileNotFoundError:
        return None
    return found


def version_in(system: Any, path: str, info: dict[str, Any] | None = None) -> str:
    """Return text that changes whenever a file does, be it told by a listing or of the file alone."""
    if "file" in protocols(system):
        return str(system.ukey(path))
    info = info or asked_again(lambda: system.info(path))
    tag = next((str(info[each]) for each in TAGS if info.get(each)), None)
    if tag is None and not is_web(system):
        return asked_again(lambda: str(system.ukey(path)))
    return hashlib.sha256(f"{info.get('size')}/{tag}".encode()).hexdigest()


def matching(system: Any, pattern: str) -> list[str]:
    """Return the files whose paths fit a pattern."""
    if not is_web(system):
        found = asked_again(lambda: system.glob(pattern, detail=True))
        return [name for name, info in found.items() if info["type"] != "directory"]
    first_sign = min(pattern.find(sign) for sign in "*[" if sign in pattern)
    root = pattern[: pattern.rindex("/", 0, first_sign) + 1]
    depth = None if "**" in pattern else pattern[len(root) :].count("/") + 1
    fits = re.compile(fsspec.utils.glob_translate(pattern))
    return [name for name in files_below(system, root, depth) if fits.match(name)]


def files_below(system: Any, folder: str, depth: int | None = None) -> list[str]:
    """Return the files in a folder and those in it, so many deep."""
    if not is_web(system):
        return list(asked_again(lambda: system.find(folder)))
    found = []  # its own way asks for all again where one folder fails
    for each in asked_again(lambda: system.ls(folder, detail=True)):
        if each["type"] != "directory":
            found.append(each["name"])
        elif depth is None or depth > 1:
            found += files_below(system, each["name"], None if depth is None else depth - 1)
    return found


class Fetched(io.RawIOBase):
    """A file of another machine. Who reads on and on has the next ranges fetched meanwhile."""

    def __init__(self, file: RemoteFile, *, reads_on: bool) -> None:
        """Fetch nothing yet."""
        self._file, self._reads_on, self._place = file, reads_on, 0
        self._next, self._read_in_a_row = 0, 0
        self._coming: deque[tuple[int, int, Future[bytes]]] = deque()
        self._size = file.num_bytes or _whole.size(file)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from anywhere."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there is something."""
        last = min(self._place + len(buffer), self._size)
        if last <= self._place:
            return 0
        content = self._read_on(last) if self._reads_on else _joined(self._file, self._place, last)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def _read_on(self, last: int) -> bytes:
        """Return what comes next, and have more fetched; a first range may be all that is wanted."""
        if self._place != self._next:
            self._forget()
        self._read_in_a_row += 1
        begin = self._coming[-1][1] if self._coming else self._place
        while begin < self._size and len(self._coming) < (AHEAD if self._read_in_a_row > 1 else 1):
            size = RANGE_BYTES if self._read_in_a_row > 1 else FIRST_BYTES
            end = min(begin + size, self._size)
            self._coming.append((begin, end, fetchers().submit(fetch, self._file, begin, end)))
            begin = end
        first, end, future = self._coming[0]
        content = future.result()[self._place - first : last - first]
        self._next = self._place + len(content)
        if self._next == end:
            self._coming.popleft()
        return content

    def _forget(self) -> None:
        for _, _, future in self._coming:
            future.cancel()
        self._coming.clear()
        self._read_in_a_row = 0

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte, counted from the first one, from here or from the end."""
        self._place = max(0, place + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence])
        return self._place

    def tell(self) -> int:
        """Return which byte is next."""
        return self._place

    def close(self) -> None:
        """Give up what is being fetched."""
        self._forget()
        super().close()


def _joined(file: RemoteFile, first: int, last: int) -> bytes:
    """Return a range, fetched in several at once where it is large."""
    begins = range(first, last, RANGE_BYTES)
    if len(begins) == 1:
        return fetch(file, first, last)
    pieces: Sequence[Future[bytes]] = [
        fetchers().submit(fetch, file, begin, min(begin + RANGE_BYTES, last)) for begin in begins
    ]
    return b"".join(piece.result() for piece in pieces)


def fetch(file: RemoteFile, first: int, last: int) -> bytes:
    """Return the bytes of a file from `first` up to but not including `last`, in one request."""
    if _whole.has(file):
        return _whole.read(file, first, last)

    def ask() -> bytes:
        if is_web(file.system):  # its `cat_file` does not look whether a range is what it gets
            with file.system.open(file.path, "rb", size=file.num_bytes, cache_type="none") as stream:
                stream.seek(first)
                content: bytes = stream.read(last - first)
        else:
            content = file.system.cat_file(file.path, start=first, end=last)
        if len(content) != last - first:
            raise OSError(f"{len(content)} bytes came where {last - first} were asked for")
        return content

    try:
        return asked_again(ask)
    except ValueError as problem:
        if WHOLE_ONLY not in str(problem):
            raise
    return _whole.read(file, first, last)


class WholeFiles:
    """Files of servers that give no parts of files, or not even their size: each is fetched once, to a local disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Future[int]] = {}

    def has(self, file: RemoteFile) -> bool:
        """Say whether a file was fetched, or is being."""
        return (file.path, file.version) in self._found

    def read(self, file: RemoteFile, first: int, last: int) -> bytes:
        """Return a range of a file."""
        return os.pread(self._descriptor(file), last - first, first)

    def size(self, file: RemoteFile) -> int:
        """Return the bytes of a file."""
        return os.fstat(self._descriptor(file)).st_size

    def _descriptor(self, file: RemoteFile) -> int:
        """Return the local copy of a file, which is gone from the disk when this process is."""
        key = file.path, file.version
        with self._lock:
            mine = key not in self._found
            future = self._found.setdefault(key, Future())
        if mine:
            descriptor, path = tempfile.mkstemp(prefix="dovetail-fetched-")
            try:
                asked_again(lambda: file.system.get_file(file.path, path))
                future.set_result(descriptor)
            except BaseException as problem:
                os.close(descriptor)
                with self._lock:
                    self._found.pop(key, None)  # who asks later tries again
                future.set_exception(problem)
                raise
            finally:
                os.unlink(path)  # noqa: PTH108 - its descriptor stays
        return future.result()


_whole = WholeFiles()
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def fetchers() -> ThreadPoolExecutor:
    """Return the threads that fetch; a process that was forked has its own."""
    with _pools_lock:
        if os.getpid() not in _pools:
            _pools[os.getpid()] = ThreadPoolExecutor(FETCHERS, thread_name_prefix=FETCHER_NAME)
        return _pools[os.getpid()]
