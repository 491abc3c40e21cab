"""Whether the threads of a worker get on: signs of life go on in a worker whose computation hangs."""

from __future__ import annotations

import threading

from dovetail.runtime.awake import AwakeClock


class Pulse:
    """When each thread that works last showed that it gets on; waiting for work is rest, waiting in small steps is not.

    Any thread beats; the one that owns the clock asks.
    """

    def __init__(self, clock: AwakeClock) -> None:
        """Start with nobody at work."""
        self._clock = clock
        self._beats_s: dict[int, float] = {}
        self.longest_s = 0.0
        """The longest that a thread ever took from one beat to the next."""

    def beat(self) -> None:
        """Note that the calling thread gets on."""
        thread, now_s = threading.get_ident(), self._clock.last_s
        last_s = self._beats_s.get(thread)
        if last_s is not None and now_s - last_s > self.longest_s:
            self.longest_s = now_s - last_s
        self._beats_s[thread] = now_s

    def rest(self) -> None:
        """Note that the calling thread has nothing to do."""
        self.beat()
        self._beats_s.pop(threading.get_ident(), None)

    @property
    def stuck_s(self) -> float:
        """Return the longest time for which a thread has been at the same thing."""
        return max((self._clock.last_s - beat_s for beat_s in list(self._beats_s.values())), default=0.0)
