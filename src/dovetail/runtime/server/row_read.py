"""The rows of one look-up on their way into an answer: read at once, or before the step that the answer waits for."""

from __future__ import annotations

from dovetail.embedding import Table, Whereabouts
from dovetail.runtime.server.attempts import Floats, Keys
from dovetail.runtime.server.due_rows import DueRows
from dovetail.runtime.server.kept_pulls import KeptKeys


class RowRead:
    """Writes rows as they are now.

    Where it is asked again to write to the same place, one step later, the place has all rows that the step has not
    changed: only the others are written.
    """

    def __init__(self, table: Table, due: DueRows, position: int, keys: Keys, kept: list[KeptKeys] | None) -> None:
        """Read keys of the table at a position; what is `kept` of the pull gets them, and where their rows lie."""
        self._table, self._due, self._position, self._keys, self._kept = table, due, position, keys, kept
        self._where: Whereabouts | None = None
        self._written_to, self._version = 0, -1

    def write(self, out: Floats, version: int) -> int:
        """Write the rows as they are after so many steps; return how many were looked up."""
        address = out.__array_interface__["data"][0]
        is_first = self._version < 0
        if address == self._written_to and (version == self._version or self._write_changed(out, version)):
            count = 0
        else:
            self._due.apply_of(self._position, self._keys)
            _, self._where = self._table.lookup_distinct(self._keys, out)
            count = len(self._keys)
        self._written_to, self._version = address, version
        if is_first and self._kept is not None:
            self._kept.append(KeptKeys(self._position, self._keys.copy(), self._where))
        return count

    def _write_changed(self, out: Floats, version: int) -> bool:
        """Write the rows that the last step has changed; False where it is not known which, or where they are."""
        if version != self._version + 1 or self._where is None:
            return False
        changed = self._due.apply_changed(self._position, self._keys)
        return changed is not None and self._table.read_again(self._where, changed, out)
