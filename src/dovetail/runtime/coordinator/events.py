"""What happened in a run, for as many as want to know."""

from __future__ import annotations

from collections import deque

MOST_KEPT = 1000
"""Events that are kept for those who ask late."""


class Events:
    """Numbered from 0; asking for them changes nothing."""

    def __init__(self) -> None:
        """Start without any."""
        self._texts: deque[str] = deque(maxlen=MOST_KEPT)
        self.next_number = 0

    def add(self, text: str) -> None:
        """Note what happened."""
        self._texts.append(text)
        self.next_number += 1

    def since(self, number: int) -> tuple[str, ...]:
        """Return the events from a number on, as far as they are kept.

        Whoever asks for one that is still to come heard of another coordinator's, and gets all.
        """
        first = self.next_number - len(self._texts)
        number = number if number <= self.next_number else 0
        return tuple(self._texts)[max(0, number - first) :]
