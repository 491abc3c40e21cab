"""What the daemon writes down of its own doings, one JSON object a line; no line is repeated without end."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

LONGEST_S = 3600.0
"""The longest time for which something that goes on is not said again."""
MOST_REPEATED = 1000


class EventLog:
    """Lines in a file; a full disk leaves gaps."""

    def __init__(self, path: Path) -> None:
        """Add to a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._said: dict[tuple[Any, ...], tuple[float, float, int]] = {}
        """When what goes on may be said again, how long after that, and how often it was not said."""

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            os.close(self._file)

    def tell(self, event: str, **facts: Any) -> None:
        """Write a line."""
        level = "error" if facts.get("error") is not None else "info"
        begins = {"time_s": round(time.time(), 3), "level": level, "role": "daemon", "event": event}
        line = {**begins, **{k: v for k, v in facts.items() if v is not None}}
        with self._lock, suppress(OSError):
            os.write(self._file, msgspec.json.encode(line) + b"\n")

    def repeat(self, event: str, **facts: Any) -> None:
        """Write a line about what may go on: at once, then ever more seldom, with how often it was so meanwhile."""
        what, now_s = (event, *facts.items()), time.monotonic()
        again_s, wait_s, times = self._said.pop(what, (0.0, 1.0, 0))
        is_due = now_s >= again_s
        self._said[what] = (now_s + wait_s, min(2.0 * wait_s, LONGEST_S), 0) if is_due else (again_s, wait_s, times + 1)
        if len(self._said) > MOST_REPEATED:
            self._said.pop(next(iter(self._said)))
        if is_due:
            self.tell(event, **facts, times=times + 1 if times else None)
