"""One host of a run as its launcher sees it: a thread that speaks to the keeper there, and handles of processes.

Nothing here waits for the network but that thread. A line that breaks is opened again; a host that has not answered
for `lost_s` counts as dead, and so do its processes. Should it answer later, what it still runs is ended first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.runtime.launch.hosts.protocol import (
    AskStates,
    Bring,
    CloseKeeper,
    HostConnection,
    HostFacts,
    HostProblem,
    KeeperAnswer,
    KeeperRequest,
    ProcessState,
    ProcessStates,
    RequestRefused,
    Signal,
    StartProcess,
    Unreachable,
)

LOOK_S = 0.25
"""How often a keeper is asked how its processes are."""
ANSWER_S = 5.0
"""How long an answer may take before the line counts as broken."""
CALL_S = 60.0
"""The longest wait for something that is asked for by hand."""
LEAST_BYTES_PER_S = 1e5
"""How slow a line may be that brings files."""
AGAIN_S = 1.0
"""When a line that could not be opened is tried again."""
FULL_S = 30.0
"""How long a host that refused to start a process is passed over where another has room."""
AWAY = "its host {} does not answer"


class RemoteHandle:
    """A process on another host, or one that its host is to start once it is back."""

    def __init__(self, host: RemoteHost, name: str) -> None:
        """Know nothing of it yet."""
        self._host, self.name = host, name
        self.process_id = 0
        self.ended: str | None = None

    @property
    def host(self) -> str:
        """Return the name of its host."""
        return self._host.name

    @property
    def pid(self) -> int:
        """Return its process id there; 0 before it is started."""
        return self.process_id

    def how_it_ended(self) -> str | None:
        """Return how it ended, or None while it runs."""
        return self.ended

    def ask_to_leave(self) -> None:
        """Have it hand its tasks to others and end."""
        self._host.signal(self, "leave")

    def kill(self) -> None:
        """End it at once; one that is not started yet, or that nobody can reach, is over for us."""
        if not self.process_id or self._host.is_away:
            self.ended = self.ended or "ended before it was started"
        self._host.signal(self, "kill")

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most so long."""
        deadline_s = time.monotonic() + timeout_s
        while self.ended is None and time.monotonic() < deadline_s:
            time.sleep(0.02)


class RemoteHost:
    """A host, the line to it, and the processes that were started on it."""

    def __init__(self, line: HostConnection, *, lost_s: float) -> None:
        """Keep the line; nobody is called yet."""
        self.name, self.line, self._lost_s = line.host.name, line, lost_s
        self.facts: HostFacts | None = None
        self.is_away = False
        self._refused_s = -FULL_S
        self.problem = ""
        """What went wrong with the line last."""
        self.logs_folder: Path | None = None
        """Where the logs of its processes come to."""
        self._handles: dict[str, RemoteHandle] = {}
        self._read: dict[str, int] = {}
        self._todo: queue.Queue[Callable[[], None]] = queue.Queue()
        self._waiting: list[Callable[[], None]] = []
        """Starts that wait for the line to be open again."""
        self._line_is_lost = False
        self._closed = threading.Event()
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"dovetail-host-{self.name}", daemon=True)

    # -- from the launcher's thread ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Reach the host; raise what is wrong with it."""
        try:
            self.facts = self.line.open()
        except Unreachable as error:
            raise HostProblem(
                f"host `{self.name}` ({self.line.host.address}:{self.line.host.port}) is not reached: {error}",
                hint="see that it is up, and its address and port in the hosts file",
            ) from None
        self._heard_s = time.monotonic()
        self._thread.start()

    @property
    def takes_more(self) -> bool:
        """Whether it is there, and has not refused to start a process a moment ago."""
        return not self.is_away and time.monotonic() - self._refused_s >= FULL_S

    def start(self, name: str, files: dict[str, bytes], *, arguments: tuple[str, ...] = ()) -> RemoteHandle:
        """Bring files and start a process of the run; it begins when the host's thread comes to it."""
        return self._begin(StartProcess(name=name, arguments=arguments), files)

    def command(self, name: str, arguments: tuple[str, ...]) -> RemoteHandle:
        """Start a command line of `dovetail`; what it prints is in `logs/NAME.out` there."""
        return self._begin(StartProcess(name=name, kind="command", arguments=arguments), {})

    def signal(self, handle: RemoteHandle, what: str) -> None:
        """Have a process leave, or end it."""
        self._todo.put(lambda: self._send_signal(handle, what))

    def call(self, request: KeeperRequest, *, timeout_s: float = CALL_S) -> KeeperAnswer:
        """Return the keeper's answer; raise where it refuses, or where nobody answers."""
        answers: queue.Queue[KeeperAnswer | Exception] = queue.Queue()

        def ask() -> None:
            try:
                answers.put(self.line.call(request, timeout_s))
            except Unreachable as error:
                answers.put(error)
                raise

        self._todo.put(ask)
        try:
            answer = answers.get(timeout=timeout_s + ANSWER_S)
        except queue.Empty:
            answer = Unreachable(f"no answer in {timeout_s:.0f} s")
        if isinstance(answer, RequestRefused):
            raise HostProblem(f"host `{self.name}`: {answer.error}", hint=answer.hint or "see to that host")
        if isinstance(answer, Exception):
            raise HostProblem(f"host `{self.name}` does not answer: {answer}", hint="see that it is up, and try again")
        return answer

    def close(self) -> None:
        """End what runs there, remove what was brought, and hang up."""
        if self._thread.is_alive():
            self._closed.set()
            self._todo.put(lambda: None)
            self._thread.join(3 * ANSWER_S)
        self.line.close()

    # -- in the host's thread ------------------------------------------------------------------------------------------

    def _begin(self, start: StartProcess, files: dict[str, bytes]) -> RemoteHandle:
        """Have a process started when it is its turn."""
        handle = RemoteHandle(self, start.name)
        self._todo.put(lambda: self._start(handle, start, files))
        return handle

    def _start(self, handle: RemoteHandle, start: StartProcess, files: dict[str, bytes]) -> None:
        """Bring the files and start the process; where the line is broken, once it is open again."""
        if handle.ended is not None:
            return
        try:
            for request in (Bring(files=files), start) if files else (start,):
                brought = sum(map(len, files.values())) if isinstance(request, Bring) else 0
                answer = self.line.call(request, CALL_S + brought / LEAST_BYTES_PER_S)
                if isinstance(answer, RequestRefused):
                    self._refused_s = time.monotonic()
                    handle.ended = f"not started: {answer.error}"
                    return
        except Unreachable:
            self._waiting.append(lambda: self._start(handle, start, files))
            raise
        if isinstance(answer, ProcessState):
            handle.process_id = answer.process_id
            self._handles[start.name] = handle
            if handle.how_it_ended() is not None:  # nobody wants it any more
                self.line.call(Signal(start.name, answer.process_id, "kill"), ANSWER_S)

    def _send_signal(self, handle: RemoteHandle, what: str) -> None:
        """Pass a wish on; a process that is not even started is over."""
        if handle.ended is None and handle.process_id:
            self.line.call(Signal(handle.name, handle.process_id, "leave" if what == "leave" else "kill"), ANSWER_S)

    def _run(self) -> None:
        """Do what is asked for, and look after the processes, until closed."""
        while not self._closed.is_set():
            try:
                if self._line_is_lost:
                    self._open_again()
                self._do_all()
                self._look()
                self._heard_s = time.monotonic()
            except Exception as error:  # a line that raises what it should not is lost as well, not this thread
                self._line_is_lost, self.problem = True, str(error) or type(error).__name__
                self._see_whether_away()
                self._closed.wait(AGAIN_S)
        if not self._line_is_lost:
            with suppress(Unreachable):
                self._look()
                self.line.call(CloseKeeper(), ANSWER_S)
        for handle in self._handles.values():
            handle.ended = handle.ended or "its launcher ended"

    def _do_all(self) -> None:
        """Do what was asked for; wait a moment where there is nothing."""
        with suppress(queue.Empty):
            self._todo.get(timeout=LOOK_S)()
            while True:
                self._todo.get_nowait()()

    def _look(self) -> None:
        """Take in how the processes are and what they wrote."""
        logs = {f"{name}.log": self._read.get(f"{name}.log", 0) for name in self._handles}
        seen = self.line.call(AskStates(logs=logs), ANSWER_S)
        if not isinstance(seen, ProcessStates):
            raise Unreachable(f"a strange answer: {type(seen).__name__}")
        self._keep_logs(seen)
        for name, handle in list(self._handles.items()):
            state = seen.states.get(name)
            if state is None or state.process_id != handle.process_id:
                handle.ended = handle.ended or AWAY.format(self.name)
            elif state.ended and handle.ended is None:
                if f"{name}.log" in seen.logs:
                    continue  # the rest of its log comes first
                handle.ended = state.ended

    def _keep_logs(self, seen: ProcessStates) -> None:
        """Add to the logs here what processes wrote there."""
        for name, new in seen.logs.items():
            self._read[name] = self._read.get(name, 0) + len(new)
            if self.logs_folder is not None:
                with suppress(OSError), (self.logs_folder / name).open("ab") as log:  # a full disk is no reason to end
                    log.write(new)

    def _see_whether_away(self) -> None:
        """Give up on the processes of a host that has been silent for too long."""
        if time.monotonic() - self._heard_s <= self._lost_s:
            return
        self.is_away = True
        for handle in self._handles.values():
            handle.ended = handle.ended or AWAY.format(self.name)

    def _open_again(self) -> None:
        """Reach the host again; where its processes are gone or were given up, it begins anew."""
        before = self.facts
        try:
            facts = self.line.open()
            if self.is_away and before is not None and facts.keeper == before.keeper:
                self.line.call(CloseKeeper(), ANSWER_S)
                facts = self.line.open()
        except HostProblem as problem:
            raise Unreachable(str(problem)) from None
        if before is None or facts.keeper != before.keeper:
            for handle in self._handles.values():
                handle.ended = handle.ended or AWAY.format(self.name)
            self._handles.clear()
            self._read.clear()
        self.facts, self._line_is_lost, self.is_away = facts, False, False
        self._heard_s = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for todo in waiting:
            self._todo.put(todo)
