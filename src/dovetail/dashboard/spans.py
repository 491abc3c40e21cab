"""What every worker did when, for a timeline that can be moved and enlarged: single spans, or parts of narrow bins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.dashboard.line_files import LineFile
from dovetail.runtime.folder import TIMELINE

KINDS = ("compute", "reduce", "wait", "read", "fetch", "send")
"""The first three are a worker's own time, the others go on beside it."""
MOST_BYTES = 64 << 20
"""Of a timeline's file; of a longer one the end is shown."""
NUM_BINS = 480
MOST_SPANS = 3_000
"""In one answer; where a window has more, its bins are given."""
SPAN_FIELDS = 5


class Spans:
    """The spans of one run, read on as they come."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._file = LineFile(folder / TIMELINE, most_bytes=MOST_BYTES)
        self._begun_anew = 0
        self.workers: list[str] = []
        self._rows: dict[str, int] = {}
        self._table: NDArray[np.float64] = np.empty((0, SPAN_FIELDS))
        """Worker, kind, start, end and step of each span."""

    def look(self) -> None:
        """Take in what is new."""
        lines = self._file.read()
        if self._file.begun_anew != self._begun_anew:
            self._begun_anew = self._file.begun_anew
            self._table = np.empty((0, SPAN_FIELDS))
        rows = [row for line in lines if (row := self._row(line)) is not None]
        if rows:
            table = np.concatenate([self._table, np.array(rows, dtype=np.float64)])
            self._table = table[np.argsort(table[:, 2], kind="stable")]

    def _row(self, line: Any) -> tuple[float, ...] | None:
        if not (isinstance(line, list) and len(line) == SPAN_FIELDS and line[1] in KINDS and isinstance(line[0], str)):
            return None
        if not all(isinstance(value, int | float) for value in line[2:]) or not line[2] <= line[3]:
            return None
        if line[0] not in self._rows:
            self._rows[line[0]] = len(self.workers)
            self.workers.append(line[0])
        return (self._rows[line[0]], KINDS.index(line[1]), line[2], line[3], line[4])

    @property
    def is_empty(self) -> bool:
        """Say whether there is none."""
        return len(self._table) == 0

    def facts(self) -> dict[str, Any] | None:
        """Return how far the timeline reaches, and what each worker's time went into; None where there is none."""
        if self.is_empty:
            return None
        taken = self._table[:, 3] - self._table[:, 2]
        totals = np.zeros((len(self.workers), len(KINDS)))
        np.add.at(totals, (self._table[:, 0].astype(int), self._table[:, 1].astype(int)), taken)
        return {
            "workers": self.workers,
            "kinds": list(KINDS),
            "from_s": float(self._table[:, 2].min()),
            "to_s": float(self._table[:, 3].max()),
            "spans": len(self._table),
            "left_out_bytes": self._file.skipped_bytes,
            "seconds": totals.round(4).tolist(),
        }

    def window(self, from_s: float, to_s: float, *, most: int = MOST_SPANS) -> dict[str, Any]:
        """Return the spans between two moments; where there are many, the part of each bin by worker and kind."""
        table = self._table[(self._table[:, 3] > from_s) & (self._table[:, 2] < to_s)]
        answer: dict[str, Any] = {"from_s": from_s, "to_s": to_s, "workers": self.workers, "kinds": list(KINDS)}
        if len(table) <= most:
            return {**answer, "spans": [[int(w), int(k), s, e, int(n)] for w, k, s, e, n in table.tolist()]}
        edges = np.linspace(from_s, to_s, NUM_BINS + 1)
        bins: list[list[list[float]]] = []
        for worker in range(len(self.workers)):
            mine = table[table[:, 0] == worker]
            bins.append([covered(mine[mine[:, 1] == kind], edges).round(3).tolist() for kind in range(len(KINDS))])
        return {**answer, "bins": bins}


def covered(spans: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the part of each bin that spans cover, whatever their number.

    The seconds covered before an edge are those since each start before it, less those since each end before it.
    """
    if not len(spans):
        return np.zeros(len(edges) - 1)
    before = _since(np.sort(spans[:, 2]), edges) - _since(np.sort(spans[:, 3]), edges)
    parts: NDArray[np.float64] = np.clip(np.diff(before) / np.diff(edges), 0.0, 1.0)
    return parts


def _since(moments: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each edge the sum of how long ago the moments before it are."""
    zero = edges[0]
    sums = np.concatenate([[0.0], np.cumsum(moments - zero)])
    count = np.searchsorted(moments, edges, side="left")
    ago: NDArray[np.float64] = count * (edges - zero) - sums[count]
    return ago
