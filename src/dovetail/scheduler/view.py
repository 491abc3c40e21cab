"""What a policy sees of a cluster and its jobs, and what it answers.

Everything about jobs is a column, one entry a job the driver has ever seen, addressed by the job's row. `rows` lists
those that have arrived and are not done, in order of submission. Columns are the driver's own and stay unchanged while
a policy decides; nothing is copied, so that a decision costs what the policy looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A moment of a cluster: what there is, what waits, what runs.

    `speed[row, type, workers]` is 0 where the job cannot run. `left` is the work still to do and `speed` how fast it
    goes: the truth, or what is believed of it, with relative errors in `left_error` and `speed_error` (0 = known).
    """

    capacity: IntArray
    """Workers of each type that are up."""
    node_workers: IntArray
    """Workers in the largest node of each type."""
    rows: IntArray
    """Jobs that have arrived and are not done, in order of submission."""
    running: IntArray
    """Those of them that hold workers."""
    speed: FloatArray
    left: FloatArray
    left_error: FloatArray
    speed_error: FloatArray
    submit_s: FloatArray
    restart_s: FloatArray
    resize_s: FloatArray
    """What other workers of its type take a job that runs, against `restart_s` for a start."""
    weight: FloatArray
    type: IntArray
    """The type a job holds workers of; -1 while it waits."""
    workers: IntArray
    """The workers a job holds; 0 while it waits."""
    started_s: FloatArray
    """When a job was last given its workers."""
    attained: FloatArray
    """Worker-seconds a job has held up to now."""
    starts: IntArray
    """How often a job has been started."""
    stopped_s: FloatArray
    """Since when a waiting job waits: its submission, or when it was last stopped."""
    batch_speed: tuple[FloatArray, ...] = ()
    """Speeds times statistical efficiency with other batch sizes, each like `speed`; 0 where a job has no such size."""

    @property
    def num_types(self) -> int:
        """How many types there are."""
        return len(self.capacity)

    @property
    def waiting(self) -> IntArray:
        """The rows that hold no workers, in order of submission."""
        waiting: IntArray = self.rows[self.workers[self.rows] == 0]
        return waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What should run: for each of `rows` its type and workers. A job left out waits."""

    rows: IntArray
    types: IntArray
    workers: IntArray
    batches: IntArray | None = None
    """For each of `rows` a position in `batch_speed`, or -1 for the job's own batch; absent = all their own."""


def allocation(rows: IntArray, types: IntArray, workers: IntArray) -> Allocation:
    """Return the allocation of those among `rows` that were given workers."""
    given = workers > 0
    return Allocation(rows=rows[given], types=types[given], workers=workers[given])
