"""The daemon as a whole: its folder, its lock and token, the controller's thread, and the server in front."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.errors import DovetailError, MissingExtraError
from dovetail.open_files import allow_many_files
from dovetail.scheduler.registry import make_policy
from dovetail.serve.controller import Controller
from dovetail.serve.listening import listen_at
from dovetail.serve.local import LocalLauncher
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobStore
from dovetail.serve.wishes import PolicyAsker

TOKEN = "token"  # noqa: S105 - a file's name
ADDRESS = "server.json"
SOCKET = "socket"
"""Where clients on this machine come in: a folder of this user alone keeps it from everybody else's hands."""
STATE = "state.sqlite"
LOCK = "daemon.lock"
END_S = 5
"""How long requests may take to be answered once the daemon ends."""


def serve(
    folder: Path,
    settings: DaemonSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    make_page: Callable[[], Any] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; jobs that run go on by themselves, and the next daemon finds them.

    `make_page` returns an application for those who come with a browser; what it shows is asked for with the token.
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from dovetail.serve.api import Api  # noqa: PLC0415 - needs the same extra
        from dovetail.serve.connections import LimitedConnection  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"what `dovetail serve` needs ({error.name})", extra="serve") from None
    allow_many_files()
    lock = _lock(folder)
    token = _token(folder)
    policy = make_policy(settings.policy)
    store = JobStore(folder / STATE)
    controller = Controller(folder, store, LocalLauncher(), PolicyAsker(policy, settings), settings)
    listening = listen_at(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    replace_file(folder / ADDRESS, msgspec.json.encode({"url": url, "process": os.getpid()}))
    local = _listen_in(folder)
    api = Api(store, controller, settings)
    server: Any = uvicorn.Server(
        uvicorn.Config(
            api.app(token, page=None if make_page is None else make_page()),
            http=LimitedConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=END_S,
        )
    )
    api.is_closing = lambda: bool(server.should_exit)
    thread = threading.Thread(target=controller.run, name="dovetail-controller", daemon=True)
    thread.start()
    counts = store.counts()
    tell(f"serving {folder} at {url}: {counts['queued']} jobs wait, {counts['running']} run")
    try:
        server.run(sockets=[listening, *local])
    finally:
        controller.stop()
        thread.join(10.0)
        if not thread.is_alive():
            controller.close()
        listening.close()
        os.close(lock)


def _lock(folder: Path) -> int:
    """Take a folder for this daemon alone, making it where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DovetailError(
            f"{folder} is served by another daemon already", hint="use that one, or choose another --folder"
        ) from None
    except OSError as error:
        raise DovetailError(f"{folder}: {error.strerror}", hint="give a --folder that can be written") from None
    return lock


def _token(folder: Path) -> str:
    """Return the folder's token, drawn where there is none; refuse one that others can read."""
    path = folder / TOKEN
    if not path.exists():
        replace_file(path, secrets.token_urlsafe(32).encode() + b"\n", private=True)
    if path.stat().st_mode & 0o077:
        raise DovetailError(f"{path} can be read by others", hint=f"chmod 600 {path}, or remove it: a new one is drawn")
    token = path.read_text().strip()
    if len(token) < 16:
        raise DovetailError(f"{path} holds no token", hint="remove it: a new one is drawn")
    return token


def _listen_in(folder: Path) -> list[socket.socket]:
    """Return a socket in the daemon's folder; none where its file system has no such thing: clients use the port."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / SOCKET).unlink(missing_ok=True)
        listening.bind(f"/proc/self/fd/{inside}/{SOCKET}")  # short, however long the folder's own path is
        (folder / SOCKET).chmod(0o600)
        listening.listen(512)
    except OSError:
        listening.close()
        return []
    finally:
        os.close(inside)
    return [listening]
