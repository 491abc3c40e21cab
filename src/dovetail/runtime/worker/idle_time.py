"""The time in which a worker had nothing to do."""

from __future__ import annotations

from dovetail.runtime.messages import Span

SHORTEST_S = 0.0005
"""Shorter waits count, and are not drawn."""
GAP_S = 0.001
"""Waits that are closer to each other than this are drawn as one."""


class IdleTime:
    """Seconds without work since they were last taken, and when they were."""

    def __init__(self) -> None:
        """Start with none."""
        self._seconds = 0.0
        self._spans: list[Span] = []

    def add(self, begin_s: float, seconds: float) -> None:
        """Note a wait that began at `begin_s`; waits one after the other are drawn as one."""
        self._seconds += seconds
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

    def take(self) -> tuple[float, list[Span]]:
        """Return what there was, and start anew."""
        taken = self._seconds, self._spans
        self._seconds, self._spans = 0.0, []
        return taken
