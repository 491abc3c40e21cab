"""When links are measured: always at first and while a codec is on, ever less often while none is needed."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.codecs.chooser import WINDOW

FIRST_WINDOWS, MOST_WINDOWS = 8, 16
"""That links rest at a stretch: a link that gets slow is noticed after so many. Looking takes processor time."""


class Rest:
    """Counts the tasks of a worker."""

    def __init__(self) -> None:
        """Begin awake."""
        self.clock: Callable[[], float] = time.perf_counter
        self._windows, self._left, self._needed = FIRST_WINDOWS, 0, 2 * WINDOW
        self._quiet = 0
        """Tasks in a row, measured, with no codec and nothing tried."""
        self._last_s = self.clock()

    @property
    def is_now(self) -> bool:
        """Say whether links rest."""
        return self._left > 0

    def task_done(self, *, is_quiet: bool) -> float:
        """Take in a task, and whether all links are quiet; return how long it took."""
        now_s = self.clock()
        step_s, self._last_s = now_s - self._last_s, now_s
        if self._left:
            self._left -= 1
        elif not is_quiet:
            self._windows, self._quiet, self._needed = FIRST_WINDOWS, 0, 2 * WINDOW
        else:
            self._quiet += 1
            if self._quiet >= self._needed:
                self._left, self._quiet, self._needed = self._windows * WINDOW, 0, WINDOW
                self._windows = min(MOST_WINDOWS, 2 * self._windows)
        return step_s
