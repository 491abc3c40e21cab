"""Pulls that a server remembers: a push and a refresh name theirs instead of sending its keys again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Whereabouts

MOST_PULLS = 64
"""Pulls remembered of one worker; the oldest goes first, and its push comes with keys after all."""


class PullName(NamedTuple):
    """Who pulled, the number it gave the pull, and the step it is for."""

    worker: str
    number: int
    version: int


class KeySet(NamedTuple):
    """The keys of one look-up of a pull, in its order, and where the table had their rows."""

    table: int
    keys: NDArray[np.int64]
    where: Whereabouts | None


class KeySetCache:
    """By worker and number; in `sync` a pull is forgotten once its step is committed."""

    def __init__(self) -> None:
        self._of_worker: dict[str, dict[int, tuple[int, list[KeySet]]]] = {}

    def begin(self, name: PullName) -> list[KeySet]:
        """Remember a pull; return the list that its look-ups are put into, in their order."""
        pulls = self._of_worker.setdefault(name.worker, {})
        while len(pulls) >= MOST_PULLS:
            del pulls[next(iter(pulls))]
        look_ups: list[KeySet] = []
        pulls[name.number] = (name.version, look_ups)
        return look_ups

    def find(self, worker: str, number: int) -> Sequence[KeySet] | None:
        """Return the look-ups of a pull, or None where it is not remembered."""
        found = self._of_worker.get(worker, {}).get(number)
        return None if found is None else found[1]

    def forget(self, worker: str, numbers: Sequence[int]) -> None:
        """Forget pulls whose gradients have come."""
        pulls = self._of_worker.get(worker, {})
        for number in numbers:
            pulls.pop(number, None)

    def forget_before(self, version: int) -> None:
        """Forget the pulls of steps that are committed."""
        for pulls in self._of_worker.values():
            for number in [number for number, (of_step, _) in pulls.items() if of_step < version]:
                del pulls[number]

    def forget_worker(self, worker: str) -> None:
        """Forget the pulls of a worker that is gone."""
        self._of_worker.pop(worker, None)

    def clear(self) -> None:
        """Forget all."""
        self._of_worker.clear()
