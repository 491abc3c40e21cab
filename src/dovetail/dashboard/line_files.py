"""Files that grow by a line of JSON at a time, read on from where one was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

MOST_AT_ONCE = 64 << 20


class LineFile:
    """Reads what is new in a file; a line that is not whole yet waits, and one that is no JSON is left out."""

    def __init__(self, path: Path, *, most_bytes: int | None = None) -> None:
        """Begin at the start; of a longer file at the last `most_bytes`."""
        self._path, self._most_bytes = path, most_bytes
        self._offset = 0
        self._file_id: int | None = None
        self.skipped_bytes = 0
        self.begun_anew = 0
        """How often the file was another, or shorter, than before."""

    def read(self) -> list[Any]:
        """Return the lines that are new; none where there is no file."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                self._see_to_beginning(self._path.stat().st_ino, size)
                file.seek(self._offset)
                text = file.read(MOST_AT_ONCE)
        except OSError:
            return []
        whole, newline, _ = text.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        found = []
        for line in whole.splitlines():
            try:
                found.append(msgspec.json.decode(line))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue
        return found

    def _see_to_beginning(self, file_id: int, size: int) -> None:
        is_other = self._file_id not in (None, file_id) or size < self._offset
        if is_other:
            self._offset = self.skipped_bytes = 0
            self.begun_anew += 1
        self._file_id = file_id
        if self._offset == 0 and self._most_bytes is not None and size > self._most_bytes:
            self._offset = self.skipped_bytes = size - self._most_bytes
