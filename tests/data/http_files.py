"""A server of files over HTTP that behaves, or not: no ranges, errors in between, connections cut off, silence."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Manners:
    """How a server answers."""

    ranges: bool = True
    """Whether it gives parts of files."""
    fails_each: int = 0
    """With every so-manyth request it says 503; 0 for never."""
    cuts_each: int = 0
    """Every so-manyth body ends in the middle, and the connection with it; 0 for never."""
    has_tags: bool = True
    """Whether it says which version of a file it gives."""
    forbids: str = ""
    """A file that nobody may read."""
    silent_s: float = 0.0
    """How long it says nothing before each answer."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of every request."""
    bodies: int = 0


@dataclass(kw_only=True)
class Answer:
    """What is sent."""

    status: int
    content: bytes = b"no"
    headers: dict[str, str] = field(default_factory=dict)


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of a folder."""

    daemon_threads = True

    def __init__(self, folder: Path, manners: Manners) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.manners, self.lock = folder, manners, threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about clients that have heard enough."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        manners = self.server.manners
        with self.server.lock:
            manners.asked.append((self.command, self.path, self.headers.get("Range", "")))
            manners.bodies += with_body
            is_error = manners.fails_each and len(manners.asked) % manners.fails_each == 0
            is_cut = with_body and manners.cuts_each and manners.bodies % manners.cuts_each == 0
        time.sleep(manners.silent_s)
        answer = Answer(status=503) if is_error else self._found(self.server.folder / self.path.lstrip("/"))
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            half = len(answer.content) // 2
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer.content[:half] if is_cut else answer.content)
        self.close_connection = self.close_connection or bool(is_cut)

    def _found(self, path: Path) -> Answer:
        """Return a file, a part of it, or a page of links to those in a folder."""
        manners = self.server.manners
        if manners.forbids and self.path.endswith(manners.forbids):
            return Answer(status=403)
        if path.is_dir():
            names = [each.name + "/" * each.is_dir() for each in sorted(path.iterdir())]
            links = "".join(f'<a href="{name}">{name}</a>' for name in names)
            return Answer(status=200, content=links.encode(), headers={"Content-Type": "text/html"})
        if not path.is_file():
            return Answer(status=404)
        content, headers = path.read_bytes(), {"Content-Type": "application/octet-stream"}
        if manners.has_tags:
            headers["ETag"] = f'"{path.stat().st_mtime_ns}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if manners.ranges else None
        if wanted is None:
            return Answer(status=200, content=content, headers=headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return Answer(status=206, content=content[first : last + 1], headers=headers)


@contextlib.contextmanager
def served(folder: Path, manners: Manners) -> Iterator[str]:
    """Serve the files of a folder on a free port of this machine; give the address."""
    with Server(folder, manners) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
