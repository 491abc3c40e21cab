"""A log that does not repeat itself: a stranger who knocks ten times a second is worth a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable

QUIET_S = 10.0
MOST_KNOWN = 1024
MOST_CHARACTERS = 500
MOST_LINES = 100
"""Of one kind in `QUIET_S`: whoever makes up something new each time must not fill our disk."""


class RateLimitedLog:
    """Writes a line for something that keeps happening once in `quiet_s`, and counts all of it in `counts`."""

    def __init__(self, log: Callable[[str], None], *, quiet_s: float = QUIET_S) -> None:
        """Write to `log`, which more than one thread may call."""
        self._log, self._quiet_s = log, quiet_s
        self._written_s: dict[Hashable, float] = {}
        self._left_out: Counter[Hashable] = Counter()
        self._lines: dict[str, tuple[float, int]] = {}
        """When the lines of each kind were last counted from 0, and how many there were since."""
        self.counts: Counter[str] = Counter()
        """How often each kind of thing happened."""

    def say(self, kind: str, who: Hashable, text: str) -> None:
        """Count a thing of this kind and write it down, unless the same `who` did it a moment ago."""
        self.counts[kind] += 1
        key, now_s = (kind, who), time.monotonic()
        if now_s - self._written_s.get(key, -self._quiet_s) < self._quiet_s or self._is_full(kind, now_s):
            self._left_out[key] += 1
            return
        if (
            len(self._written_s) + len(self._left_out) >= MOST_KNOWN
        ):  # Whoever makes up new names must not fill our memory.
            self._written_s.clear()
            self._left_out.clear()
        self._written_s[key] = now_s
        left_out = self._left_out.pop(key, 0)
        with contextlib.suppress(Exception):  # Whoever cannot write a log can still serve.
            self._log(printable(f"{text} (and {left_out} more like it before)" if left_out else text))

    def _is_full(self, kind: str, now_s: float) -> bool:
        """Say whether enough was written of a kind for now; count one more where not."""
        since_s, lines = self._lines.get(kind, (now_s, 0))
        if now_s - since_s >= self._quiet_s:
            since_s, lines = now_s, 0
        self._lines[kind] = (since_s, lines + (lines < MOST_LINES))
        return lines >= MOST_LINES


def printable(text: str) -> str:
    """Return text that a stranger had a part in, so that it stays on one line of a log."""
    text = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
    return "".join(character if character.isprintable() else "?" for character in text)
