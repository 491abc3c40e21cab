"""Logs that programs read: one JSON object a line, where `DOVETAIL_LOG=json` or a run file says so.

    {"time": "2026-11-16T06:00:00.123Z", "level": "info", "role": "server-0", "run": "ctr-dnn-7", "text": "..."}

`role` is which process speaks and `run` is the id that all processes of a run, or of a daemon's job, have in common.
In that mode stderr itself is a `JsonLines`: what other packages print, tracebacks and warnings are lines of it too.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

FORMAT = "DOVETAIL_LOG"
JOB = "DOVETAIL_JOB"
"""The id of the daemon's job that a process belongs to."""
LEVELS = {"error:": "error", "Traceback ": "error", "warning:": "warning"}
"""How lines begin that somebody should look at."""


def wants_json() -> bool:
    """Say whether this process was asked for lines that programs read."""
    return os.environ.get(FORMAT, "").strip().lower() == "json"


class JsonLines(io.TextIOBase):
    """Takes text as any stream does, and writes every line as a JSON object."""

    def __init__(self, under: TextIO, *, role: str, run: str | None) -> None:
        """Write to another stream."""
        self._under, self._begun = under, ""
        self.role, self.run = role, run

    def line(self, text: str, *, level: str = "info", role: str | None = None, **facts: Any) -> None:
        """Write a line with its facts; those that are None are left out."""
        facts = {"time": _now(), "level": level, "role": role or self.role, "run": self.run, **facts, "text": text}
        known = {name: value for name, value in facts.items() if value is not None}
        self._under.write(json.dumps(known, default=str) + "\n")
        self._under.flush()

    def write(self, text: str) -> int:
        """Take text; a line is written once it is whole."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                begins = (level for start, level in LEVELS.items() if line.startswith(start))
                self.line(line.rstrip(), level=next(begins, "info"))
        return len(text)

    def flush(self) -> None:
        """Hand on what is whole."""
        self._under.flush()

    def isatty(self) -> bool:
        """Say that nobody watches this: no tables are drawn."""
        return False

    def fileno(self) -> int:
        """Return the file below."""
        return self._under.fileno()

    def finish(self) -> None:
        """Write what was begun and not ended."""
        if self._begun:
            self.write("\n")


def tell(text: str, *, level: str = "info", role: str | None = None, **facts: Any) -> None:
    """Write a line to stderr: the text for people, or all of it for programs."""
    with suppress(OSError):  # a full disk is no reason to end
        if isinstance(sys.stderr, JsonLines):
            sys.stderr.line(text, level=level, role=role, **facts)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def tell_as(role: str, text: str, **facts: Any) -> None:
    """Write a line of one of a run's processes: people are told the time of day and who speaks."""
    if isinstance(sys.stderr, JsonLines):
        tell(text, role=role, **facts)
    else:
        tell(f"{time.strftime('%H:%M:%S')} {role}: {text}")


@contextmanager
def json_lines(role: str, run: str | None = None, *, wanted: bool = True) -> Iterator[None]:
    """Have stderr be of JSON lines for a while; where it is already, name the run that it is about."""
    before = sys.stderr
    if isinstance(before, JsonLines):
        held, before.run = before.run, run or before.run
        try:
            yield
        finally:
            before.run = held
    elif not wanted:
        yield
    else:
        sys.stderr = lines = JsonLines(before, role=role, run=run)
        try:
            yield
        finally:
            lines.finish()
            sys.stderr = before


def _now() -> str:
    now_s = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s % 1 * 1000):03d}Z"
