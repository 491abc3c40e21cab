"""Has tasks done in a process beside the server: one after the other, each within its time, or the process is ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from dovetail.dashboard.asked import PageTask
from dovetail.errors import DovetailError

START_S = 120.0
"""How long a process may take to be ready: once on a machine, it compiles what plans."""
MOST_WAITING = 8
COMMAND = (sys.executable, "-P", "-c", "from dovetail.dashboard.task_process import main; main()")


class TaskRunner:
    """One process that does tasks, started when it is first needed, and again when it was ended."""

    def __init__(self, limit_s: float) -> None:
        """Give each task so long."""
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time, self._counting = threading.Lock(), threading.Lock()
        self._waiting = 0
        self._is_ready = False

    def start(self) -> None:
        """Start the process, which loads what it needs while nobody waits."""
        with self._one_at_a_time:
            self._started()

    def do(self, task: PageTask) -> bytes:
        """Return the answer to a task as JSON; raise where it takes too long, or where too many wait."""
        with self._counted(), self._one_at_a_time:
            return self._ask(msgspec.json.encode(task))

    def close(self) -> None:
        """End the process."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._counting:
            if self._waiting >= MOST_WAITING:
                raise DovetailError(f"{self._waiting} requests wait already", hint="wait a moment, and ask again")
            self._waiting += 1
        try:
            yield
        finally:
            with self._counting:
                self._waiting -= 1

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - ours
        return self._process

    def _ask(self, line: bytes) -> bytes:
        process = self._started()
        limit_s = self._limit_s if self._is_ready else self._limit_s + START_S
        too_long = threading.Event()

        def give_up() -> None:
            too_long.set()
            process.kill()

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            answer = _exchanged(process, line)
        finally:
            timer.cancel()
        if too_long.is_set():
            self.close()
            raise DovetailError(
                f"it took longer than {limit_s:.3g} s, and was given up",
                hint="a smaller file, or the command line: it has no such limit",
            )
        if not answer.endswith(b"\n"):
            self.close()
            raise DovetailError(
                f"planning ended with exit status {process.returncode}",
                hint="ask again; a file that it ends with every time may need more memory than there is",
            )
        self._is_ready = True
        return answer[:-1]


def _exchanged(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Return the line that answers another; nothing where the process is gone."""
    with suppress(OSError, ValueError):
        if process.stdin is not None and process.stdout is not None:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            return process.stdout.readline()
    return b""
