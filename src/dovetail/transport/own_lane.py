"""The shared memory of a caller, and which request has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.transport.arrays import Sendable
from dovetail.transport.envelope import LaneReference
from dovetail.transport.errors import WireError
from dovetail.transport.lanes import SMALLEST_BYTES, LaneFile, make_lane


class OwnLane:
    """At most one lane, lent to one request at a time; made when it is first needed."""

    def __init__(self, folder: Path | None, owner: str, lane_bytes: int) -> None:
        """Make lanes in `folder`; without one nothing ever goes through shared memory."""
        self._folder, self._owner, self._lane_bytes = folder, owner, lane_bytes
        self._file: LaneFile | None = None
        self._lent_to: int | None = None

    def load(self, request: int, arrays: Sequence[Sendable]) -> LaneReference | None:
        """Lend the lane to a request and put its arrays there where that pays; None where it is lent or cannot be had.

        Small arrays stay out, but the answer may be large.
        """
        if self._folder is None or self._lent_to is not None:
            return None
        if self._file is None:
            self._file = make_lane(self._folder, self._owner, self._lane_bytes)
            if self._file is None:
                return None
        self._lent_to = request
        is_large = sum(array.nbytes for array in arrays) >= SMALLEST_BYTES
        return LaneReference(self._file.name, self._file.place(arrays) if is_large else None)

    def find(self, name: str) -> LaneFile:
        """Return the lane an answer refers to, which can only be the present one."""
        if self._file is None or self._file.name != name:
            raise WireError(f"an answer refers to the lane {name[:100]!r}, which is not ours")
        return self._file

    def free(self, request: int) -> None:
        """Take the lane back from a request that was answered."""
        if self._lent_to == request:
            self._lent_to = None

    def retire(self, request: int | None = None) -> None:
        """Give up the lane of a request that was not answered (None: of any), as the peer may still use it."""
        if self._lent_to is not None and request in (None, self._lent_to):
            self._lent_to = None
            self.close()

    def close(self) -> None:
        """Remove the file; who has it mapped keeps its memory."""
        if self._file is not None and self._folder is not None:
            (self._folder / self._file.name).unlink(missing_ok=True)
        self._file = None
