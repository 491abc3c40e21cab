"""A log that programs read: one JSON object a line, with the job's id in it."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """Lines in a file; a full disk leaves gaps."""

    def __init__(self, path: Path) -> None:
        """Add to a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def tell(self, event: str, **facts: Any) -> None:
        """Write a line."""
        level = "error" if facts.get("error") is not None else "info"
        begins = {"time_s": round(time.time(), 3), "level": level, "role": "daemon", "event": event}
        line = {**begins, **{k: v for k, v in facts.items() if v is not None}}
        with self._lock, suppress(OSError):
            os.write(self._file, msgspec.json.encode(line) + b"\n")
