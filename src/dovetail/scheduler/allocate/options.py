"""What each job could be given, and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.scheduler.view import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of n jobs, flat and grouped by job: job j has those from `first[j]` up to `first[j + 1]`."""

    first: IntArray
    types: IntArray
    workers: IntArray
    values: FloatArray

    @property
    def num_jobs(self) -> int:
        """How many jobs there are."""
        return len(self.first) - 1

    def jobs(self) -> IntArray:
        """Return for each option the job it belongs to."""
        return np.repeat(np.arange(self.num_jobs), np.diff(self.first))

    def only(self, kept: BoolArray) -> tuple[Options, IntArray]:
        """Return the options that are kept, and where each stood before."""
        where = np.flatnonzero(kept)
        counts = np.bincount(self.jobs()[where], minlength=self.num_jobs)
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return (
            Options(first=first, types=self.types[where], workers=self.workers[where], values=self.values[where]),
            where,
        )
