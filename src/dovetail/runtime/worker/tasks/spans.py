"""Spans of time: the clock that all processes tell them by, and those in which a worker had nothing to do."""

from __future__ import annotations

import time
from collections import deque

from dovetail.runtime.messages import Span

SHORTEST_S = 0.0005
"""Shorter waits count, and are not drawn."""
GAP_S = 0.001
"""Waits that are closer to each other than this are drawn as one."""


class IdleTime:
    """Seconds without work since they were last taken, and when they were.

    The thread that computes notes when it waits; while its last gradients are on their way it is not idle, though it
    computes nothing: that is a part of a task, as is fetching parameters.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._seconds = 0.0
        self._waits: list[tuple[float, float]] = []
        self._waits_before: list[tuple[float, float]] = []
        """Of the time before: what went on then may be told only now."""
        self._spans: list[Span] = []
        self._own: deque[tuple[float, float]] = deque()

    def add(self, begin_s: float, seconds: float) -> None:
        """Note a wait that began at `begin_s`; waits one after the other are drawn as one."""
        if seconds <= 0:
            return
        self._seconds += seconds
        self._waits.append((begin_s, begin_s + seconds))
        if seconds < SHORTEST_S:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and last.kind == "wait" and begin_s - last.end_s < GAP_S:
            self._spans[-1] = Span("wait", last.start_s, begin_s + seconds, last.step)
        else:
            self._spans.append(Span("wait", begin_s, begin_s + seconds, 0))

    def add_span(self, span: Span) -> None:
        """Note a wait of another kind: for the other members of a ring."""
        self._seconds += span.end_s - span.start_s
        self._spans.append(span)

    def add_own(self, begin_s: float, end_s: float) -> None:
        """Note when the worker was at something else than computing that is its own; from any thread."""
        self._own.append((begin_s, end_s))

    def take(self) -> tuple[float, list[Span]]:
        """Return what there was, and start anew."""
        own_s = 0.0
        while self._own:
            begin_s, end_s = self._own.popleft()
            for first_s, last_s in (*self._waits_before, *self._waits):
                own_s += max(0.0, min(end_s, last_s) - max(begin_s, first_s))
        taken = max(0.0, self._seconds - own_s), self._spans
        self._seconds, self._waits_before, self._waits, self._spans = 0.0, self._waits, [], []
        return taken


def now_s() -> float:
    """Return the time that spans of all processes are told in."""
    return time.time()
