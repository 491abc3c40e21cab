"""Keeps the processes of one launcher on another host: starts them, says how they are, and ends them.

It ends everything and removes its folder when it is told to, or when nobody has said a word for a while: a launcher
that was killed leaves nothing behind. It imports no torch, so that it is there at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from dovetail.atomic_file import replace_file
from dovetail.runtime.launch.fork_server import LEAVE
from dovetail.runtime.launch.hosts.protocol import (
    AskFacts,
    AskMissing,
    AskPorts,
    AskStates,
    Bring,
    CloseKeeper,
    Fetch,
    FetchedFiles,
    Fine,
    HostFacts,
    KeeperAnswer,
    KeeperRequest,
    MissingPaths,
    Ports,
    ProcessState,
    ProcessStates,
    RequestRefused,
    Signal,
    StartProcess,
    decode_request,
    encode,
)
from dovetail.runtime.private_folder import hold_port, let_go

LOGS = "logs"
MOST_LOG_BYTES = 1 << 18
"""Of one log in one answer: the rest comes with the next."""
END_S = 5.0
THERE = "dovetail.runtime.launch.hosts.worker_entry"
COMMAND = "from dovetail.cli.main import main; main()"


class Keeper:
    """The processes of a launcher on this host, and the folder that its files come to."""

    def __init__(self, folder: Path, *, lost_s: float) -> None:
        """Make the folder, for this user alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder, self._lost_s = folder, lost_s
        self.name = secrets.token_hex(8)
        self.is_closed = False
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._heard_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def is_alone(self) -> bool:
        """Whether the launcher has been silent for so long that it must be gone."""
        return time.monotonic() - self._heard_s > self._lost_s

    def heard(self) -> None:
        """Take in that the launcher speaks: what it brings may take long to come."""
        self._heard_s = time.monotonic()

    def answer(self, request: KeeperRequest) -> KeeperAnswer:
        """Do what the launcher asks for; from any thread."""
        with self._lock:
            self.heard()
            if self.is_closed:
                return RequestRefused(error="this keeper has ended, as nobody spoke to it")
            try:
                return self._answer(request)
            except (OSError, subprocess.TimeoutExpired) as error:
                return RequestRefused(
                    error=str(error), hint="see what that host allows: its disks, its memory, `ulimit -a`"
                )

    def answer_encoded(self, request: bytes) -> bytes:
        """Do what a message asks for, and return the answer as one; what is no request is refused."""
        try:
            return encode(self.answer(decode_request(request)))
        except ValueError as error:
            return encode(RequestRefused(error=str(error)))

    def close(self) -> None:
        """End every process and remove the folder; nothing is started any more."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        """Do it, where it was not done before."""
        if self.is_closed:
            return
        self.is_closed = True
        for child in self._children.values():
            _signal(child, signal.SIGKILL)
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        let_go(self.folder)

    def _answer(self, request: KeeperRequest) -> KeeperAnswer:
        """Do what the launcher asks for."""
        answer: KeeperAnswer = Fine()
        match request:
            case AskFacts():
                answer = self._facts()
            case Bring():
                for name, content in request.files.items():
                    path = self._below(name)
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    replace_file(path, content, private=True)
            case Fetch():
                paths = {name: self._below(name) for name in request.paths}
                answer = FetchedFiles(files={name: path.read_bytes() for name, path in paths.items() if path.is_file()})
            case AskMissing():
                answer = MissingPaths(paths=tuple(path for path in request.paths if not Path(path).exists()))
            case AskPorts():
                answer = Ports(ports=tuple(hold_port(request.address, self.folder) for _ in range(request.count)))
            case StartProcess():
                answer = self._start(request)
            case Signal():
                child = self._children.get(request.name)
                if child is not None and child.pid == request.process_id:
                    _signal(child, LEAVE if request.what == "leave" else signal.SIGKILL)
            case AskStates():
                answer = self._look(request)
            case CloseKeeper():
                self._close()
        return answer

    def _facts(self) -> HostFacts:
        """Return what this host has."""
        return HostFacts(
            keeper=self.name,
            cores=len(os.sched_getaffinity(0)),
            gpus=len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            memory_bytes=psutil.virtual_memory().total,
            folder=str(self.folder),
        )

    def _start(self, request: StartProcess) -> KeeperAnswer:
        """Start a process in a session of its own, with its log."""
        earlier = self._children.get(request.name)
        if earlier is not None and earlier.poll() is None:
            _signal(earlier, signal.SIGKILL)
            earlier.wait(END_S)
        logs = self.folder / LOGS
        logs.mkdir(mode=0o700, exist_ok=True)
        if request.kind == "process":
            command = [sys.executable, "-m", THERE, str(self.folder), request.name, *request.arguments]
        else:
            command = [sys.executable, "-c", COMMAND, *request.arguments]
        out = logs / f"{request.name}.{'log' if request.kind == 'process' else 'out'}"
        with (logs / f"{request.name}.log").open("ab") as log, out.open("ab") as printed:
            child = subprocess.Popen(  # noqa: S603 - this interpreter, our own package
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                start_new_session=True,
            )
        self._children[request.name] = child
        return ProcessState(process_id=child.pid)

    def _look(self, request: AskStates) -> ProcessStates:
        """Return how the processes are, and what is new in the logs."""
        states = {name: ProcessState(process_id=child.pid, ended=_how(child)) for name, child in self._children.items()}
        logs = {}
        for name, begin in request.logs.items():
            with suppress(OSError), self._below(f"{LOGS}/{name}").open("rb") as file:
                file.seek(begin)
                if new := file.read(MOST_LOG_BYTES):
                    logs[name] = new
        return ProcessStates(states=states, logs=logs)

    def _below(self, name: str) -> Path:
        """Return a path below the folder; refuse one that leads out of it."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise PermissionError(f"{name} is not below {self.folder}")
        return self.folder / path


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process; one that ends it goes to all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        if child.poll() is None:
            (os.killpg if number == signal.SIGKILL else os.kill)(child.pid, number)


def _how(child: subprocess.Popen[bytes]) -> str:
    """Return how a process ended; nothing while it runs."""
    code = child.poll()
    if code is None:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
