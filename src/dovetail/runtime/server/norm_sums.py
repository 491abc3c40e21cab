"""Statistics of batch norms over the whole batch of a step: what workers bring of their parts, put together.

A worker comes to a norm in its forward pass with count, means and squared distances of its samples, and in its backward
pass with sums of gradients. Whoever comes waits for those of all positions of the batch. Running means and variances
lie here too: they take in a step when it is committed, and are in this server's part of a checkpoint.

No sockets: whoever waits is a value that is handed back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.runtime.checkpoint import Floats
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddUp

Sums = NDArray[np.float64]
Answers = list[tuple[Any, Sums | None]]
"""Who waited, and what for; None where it never comes: the workers are at different layers, and none is elsewhere."""
BUG = "a bug: report it"


@dataclass(slots=True)
class _Place:
    """One norm, one way, of the step under way."""

    first: AddUp
    parts: dict[int, tuple[int, Sums]] = field(default_factory=dict)
    """By task: its positions, and what it brought."""
    waiting: list[Any] = field(default_factory=list)
    result: Sums | None = None


class NormSums:
    """The norms of the step under way, and the running statistics of all."""

    def __init__(self) -> None:
        self.running: Floats | None = None
        self._has_changed = False
        self._next: Floats | None = None
        """What running statistics are after the step under way, where that is known from elsewhere."""
        self._places: dict[tuple[int, bool], _Place] = {}
        self._positions: dict[int, int] = {}
        """Of tasks that will come to no further norm: they are pushed, or have no samples."""
        self._absent: set[int] = set()

    def load(self, running: Floats | None) -> None:
        """Take up the running statistics of a checkpoint."""
        self.running, self._has_changed = None if running is None else running.copy(), False
        self.discard()

    @property
    def to_save(self) -> Floats | None:
        """Return running statistics that are other than those that were loaded."""
        return self.running if self._has_changed else None

    def discard(self) -> None:
        """Forget the step under way: whoever waits is told by the coordinator."""
        self._next = None
        self._places.clear()
        self._positions.clear()
        self._absent.clear()

    def after_commit(self) -> Floats | None:
        """Return the running statistics as they are once the step counts, where it changes them."""
        if self._next is not None or self.running is None:
            return self._next
        other = NormSums()
        other.running, other._places = self.running.copy(), dict(self._places)
        other.commit()
        return other.to_save

    def put_next(self, running: Floats) -> None:
        """Have the running statistics be these when the step is committed."""
        self._next = running.copy()

    def add(self, message: AddUp, sums: NDArray[Any], who: Any) -> Answers:
        """Take in what a worker brings; return who can be answered now."""
        if message.place < 0:
            self._positions[message.task] = message.positions
            self._absent.add(message.task)
            return [(who, np.zeros(0)), *self._whole(message.batch), *self._stuck(message.batch)]
        place = self._places.get((message.place, message.back)) or _Place(message)
        self._check(message, sums, place)
        self._places[message.place, message.back] = place  # not before: what is refused is as if it had not come
        if place.result is not None:
            return [(who, place.result)]
        place.parts[message.task] = (message.positions, sums.copy())
        place.waiting.append(who)
        return [*self._whole(message.batch), *self._stuck(message.batch)]

    def pushed(self, task: int, positions: int) -> Answers:
        """Note that a task's gradients are all here; return who waits for it in vain."""
        self._positions[task] = positions
        batch = next((place.first.batch for place in self._places.values()), None)
        return [] if batch is None else self._stuck(batch)

    def _check(self, message: AddUp, sums: NDArray[Any], place: _Place) -> None:
        """Refuse what does not fit the others of its place."""
        first = place.first
        if sums.dtype != np.float64 or sums.ndim != 1 or len(sums) % 2 == 0:
            raise TrainingError(f"sums of a norm are {sums.dtype} {sums.shape}", hint=BUG)
        size = (len(sums) - 1) // 2
        if (message.offset, message.batch) != (first.offset, first.batch):
            raise TrainingError("workers came to different norms", hint=BUG)
        if any(len(sums) != len(other) for _, other in place.parts.values()):
            raise TrainingError(f"workers came to norms of {size} and other channels", hint=BUG)
        fits = self.running is not None and message.offset + 2 * size <= len(self.running)
        if message.offset >= 0 and not fits:
            raise TrainingError(
                "the checkpoint that the run began with has no running statistics of this model's norms",
                hint='set training.batch_norm = "own", or begin anew with --start-from',
            )

    def _whole(self, batch: int) -> Answers:
        """Put together what all have brought; return who waited for it."""
        answers: Answers = []
        for (_, back), place in sorted(self._places.items(), key=lambda item: item[0]):
            absent = sum(self._positions[task] for task in self._absent if task not in place.parts)
            if place.result is None and absent + sum(count for count, _ in place.parts.values()) >= batch:
                parts = [place.parts[task][1] for task in sorted(place.parts)]
                place.result = np.sum(parts, axis=0) if back else self._statistics(place.first, joined(parts))
                answers += [(who, place.result) for who in place.waiting]
                place.waiting.clear()
        return answers

    def _statistics(self, message: AddUp, whole: Sums) -> Sums:
        """Return what a batch is normalised by: itself, but one value has no spread, and takes running statistics.

        These come with a count of zero: they are not the batch's, and nothing goes back through them.
        """
        size = (len(whole) - 1) // 2
        if whole[0] > 1 or message.offset < 0 or self.running is None:
            return whole
        return np.concatenate([[0.0], self.running[message.offset : message.offset + 2 * size]]).astype(np.float64)

    def _stuck(self, batch: int) -> Answers:
        """Return all who wait where nobody is left who could bring what they wait for."""
        positions = dict(self._positions)
        for place in self._places.values():
            if place.result is None:
                positions |= {task: count for task, (count, _) in place.parts.items()}
        waiting = [who for place in self._places.values() for who in place.waiting]
        if not waiting or sum(positions.values()) < batch:
            return []
        for place in self._places.values():
            place.waiting.clear()
        return [(who, None) for who in waiting]

    def commit(self) -> None:
        """Have running statistics take in the step, norm by norm in the order of the forward pass."""
        if self._next is not None:
            self.running, self._has_changed = self._next, True
            self.discard()
        for (_, back), place in sorted(self._places.items(), key=lambda item: item[0]):
            if not back and place.result is not None and place.first.offset >= 0:
                self._take_in(place.first, place.result)
        self.discard()

    def _take_in(self, message: AddUp, whole: Sums) -> None:
        """Move the running mean and variance of a norm towards those of a batch; the variance is the unbiased one."""
        count, size = whole[0], (len(whole) - 1) // 2
        if self.running is None or count <= 1:
            return
        begin, part = message.offset, np.float32(message.momentum)
        unbiased = whole[1 + size :] * (count / (count - 1.0))
        for value, at in ((whole[1 : 1 + size], begin), (unbiased, begin + size)):
            running = self.running[at : at + size]
            running += part * (value.astype(np.float32) - running)
        self._has_changed = True


def joined(parts: list[Sums]) -> Sums:
    """Return count, means and variances of all samples, from count, means and squared distances of each part.

    Squared distances from a common mean: those from a part's own, and count times the square of how far that is off.
    """
    size = (len(parts[0]) - 1) // 2
    counts = np.array([part[0] for part in parts])
    total = counts.sum()
    means = np.stack([part[1 : 1 + size] for part in parts])
    mean = (counts[:, None] * means).sum(axis=0) / total
    squares = np.stack([part[1 + size :] for part in parts]) + counts[:, None] * (means - mean) ** 2
    return np.concatenate([[total], mean, squares.sum(axis=0) / total])
