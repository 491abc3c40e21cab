"""How fast a worker is, from its recent tasks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from dovetail.runtime.dispatch.split import WorkerShare

FOLLOWED = 0.4
"""How much of the way to what was last seen the fit goes with each task."""
CHANGED = 0.15
"""How far two tasks in a row must lie from the fit, on one side of it, for the worker to have changed."""
ALIKE = 0.3
"""How far the two may lie apart and still say the same."""
FIRST_ERROR = 0.05
"""How far predictions are taken to be off before any was made."""
MOST_ERROR = 0.3
"""What a prediction that was off by more counts as: a worker that changed was not noisy."""
ERROR_FOLLOWED = 0.2
"""How much of the way to the last error the mean error goes with each task."""
FADED = 0.99
"""What is left of the cost of a piece with each task that is none."""
LEAST_S = 1e-9
"""The shortest time that a clock shows."""


class Followed:
    """A number that is seen with noise: steady, deaf to one outlier, and quick when it really changes.

    Each number seen moves the value 40% of the way to the median of the last three. Two in a row that lie more than 15%
    from the value on the same side of it, and within 30% of each other, are a change: the value is then their mean,
    and what came before is forgotten.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._last: deque[float] = deque(maxlen=3)
        self.value: float | None = None

    @property
    def doubted(self) -> float | None:
        """Return what was last seen where it lies far from the value: an outlier or the start of a change."""
        if self.value is None or abs(self._last[-1] - self.value) <= CHANGED * self.value:
            return None
        return self._last[-1]

    def add(self, seen: float) -> None:
        """Take in one number."""
        self._last.append(seen)
        if self.value is None:
            self.value = seen
        elif self._changed():
            while len(self._last) > 2:
                self._last.popleft()
            self.value = sum(self._last) / 2
        else:
            self.value += FOLLOWED * (median(self._last) - self.value)

    def _changed(self) -> bool:
        """Say whether the last two agree with each other and not with the value."""
        if self.value is None or len(self._last) < 2:
            return False
        low, high = sorted(list(self._last)[-2:])
        apart = low > self.value * (1 + CHANGED) or high < self.value * (1 - CHANGED)
        return apart and high - low <= ALIKE * high


class WorkerSpeed:
    """A worker's time for b samples, `fixed_s + b / samples_per_s`, fitted from its recent tasks.

    A task tells the part of its time that grows with its samples (`compute_s`) from the part that does not
    (`fixed_s`: parameters in, gradients out, overhead), so each is followed by itself. Small pieces of a step's tail
    say little about the speed: they are counted together until they are a quarter of a task. Their own fixed cost,
    which is smaller where the parameters are already there, is `piece_fixed_s`.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._rate = Followed()
        self._fixed = Followed()
        self._piece_fixed = Followed()
        self._push = Followed()
        self._waiting_samples = 0
        self._waiting_s = 0.0
        self._enough_samples = 0.0
        self._enough_s = 0.0
        self._tasks_since_piece = 0
        self.num_tasks = 0
        self.error = FIRST_ERROR

    def add(self, samples: int, compute_s: float, fixed_s: float, *, push_s: float = 0.0, piece: bool = False) -> None:
        """Take in a task; `piece` says that it was a small one from the tail of a step.

        Of `fixed_s`, the task's last gradients were under way for `push_s`. A task without samples, or with times that
        no clock shows, says nothing and is left out.
        """
        if samples <= 0 or not LEAST_S <= compute_s < math.inf or not 0 <= fixed_s < math.inf:
            return
        self.num_tasks += 1
        predicted_s = self.seconds(samples)
        if not piece and predicted_s is not None:
            off = min(abs((fixed_s + compute_s) / predicted_s - 1), MOST_ERROR)
            self.error += ERROR_FOLLOWED * (off - self.error)
        (self._piece_fixed if piece else self._fixed).add(fixed_s)
        if not piece and 0 <= push_s < math.inf:
            self._push.add(push_s)
        self._tasks_since_piece = 0 if piece else self._tasks_since_piece + 1
        self._waiting_samples += samples
        self._waiting_s += compute_s
        if not piece:
            self._enough_samples, self._enough_s = samples / 4, compute_s / 4
        if self._waiting_samples >= self._enough_samples or self._waiting_s >= self._enough_s:
            self._rate.add(self._waiting_samples / self._waiting_s)
            self._waiting_samples, self._waiting_s = 0, 0.0

    @property
    def known(self) -> bool:
        """Say whether there has been a task to learn from."""
        return self._rate.value is not None

    @property
    def samples_per_s(self) -> float | None:
        """Return the slope, or None while it is not known."""
        return self._rate.value

    @property
    def fixed_s(self) -> float:
        """Return what a task costs whatever its size; 0 while nothing is known."""
        return self._fixed.value if self._fixed.value is not None else self._piece_fixed.value or 0.0

    @property
    def piece_fixed_s(self) -> float:
        """Return what a small piece costs whatever its size; as a task while no piece has been seen.

        It fades with every task since the last piece, so that pieces taken for too dear are tried again.
        """
        seen_s = self.fixed_s if self._piece_fixed.value is None else self._piece_fixed.value
        return seen_s * FADED**self._tasks_since_piece

    @property
    def push_s(self) -> float:
        """Return how long a task's last gradients are under way; 0 while that is not known."""
        return min(self.fixed_s, self._push.value or 0.0)

    @property
    def sure_samples_per_s(self) -> float | None:
        """Return what the worker surely does: less than the fit where its last task was much slower."""
        doubted = self._rate.doubted
        return self._rate.value if doubted is None or self._rate.value is None else min(self._rate.value, doubted)

    def seconds(self, samples: int) -> float | None:
        """Predict how long a task takes, or None while the speed is not known; no samples take no time."""
        if self._rate.value is None:
            return None
        return self.fixed_s + samples / self._rate.value if samples > 0 else 0.0

    def piece_seconds(self, samples: int) -> float | None:
        """Predict how much longer a task takes with a piece of so many samples, or None while that is not known."""
        return None if self._rate.value is None else self.piece_fixed_s + samples / self._rate.value

    def share(
        self,
        name: str,
        *,
        most_samples: int | None = None,
        pinned: float | None = None,
        first_guess: float | None = None,
    ) -> WorkerShare:
        """Return what a split needs of the worker; `first_guess` are its samples per second until they are known."""
        return WorkerShare(
            name=name,
            fixed_s=self.fixed_s,
            samples_per_s=self.samples_per_s or first_guess,
            most_samples=most_samples,
            share=pinned,
            piece_fixed_s=self.piece_fixed_s,
            sure_samples_per_s=self.sure_samples_per_s,
            error=self.error,
            push_s=self.push_s,
        )


def first_guess(cores: float, others: Iterable[tuple[WorkerSpeed, float]]) -> float | None:
    """Guess the samples per second of a new worker from those of others, each with its cores.

    It is the median of what the others do a core, times the cores of the new one; None where nobody is known yet.
    A core is whatever the caller compares workers by: threads, a quota, one for each GPU of a kind.
    """
    a_core = [
        speed.samples_per_s / their_cores
        for speed, their_cores in others
        if speed.samples_per_s is not None and their_cores > 0
    ]
    return median(a_core) * cores if a_core else None
