"""Things made ahead by threads and handed out in order: by as many as keep whoever takes them from waiting."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")

NOTABLE = 0.03
"""The part of the time from which on waiting is worth another thread."""
PERIOD_S = 0.1
"""How long is looked at before a thread is added, or one that brought nothing is given up."""
GAIN = 1.05
"""How much faster things must come for a thread to stay."""
LOOK_S = 0.2


def num_cores() -> int:
    """Return how many cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class MadeAhead(Generic[Job, Made]):
    """What `make` makes of jobs, in their order, `ahead` of whoever iterates.

    With `readers` None the number of threads is found by measuring: it begins with one, and as long as whoever takes
    has to wait, one is added, up to `most` or the number of cores; one that makes nothing faster goes again. What a job
    raises is raised where its result is taken. Leaving the loop, or `close`, ends the threads.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        make: Callable[[Job], Made],
        *,
        ahead: int,
        readers: int | None = None,
        most: int | None = None,
        name: str = "dovetail-ahead",
    ) -> None:
        """Start nothing before the first result is asked for."""
        self._jobs, self._make, self._ahead, self._name = iter(jobs), make, max(1, ahead), name
        self.readers = 1 if readers is None else readers
        """How many threads are at work."""
        self._most = self.readers if readers is not None else most or num_cores()
        self.waited_s = 0.0
        """How long whoever takes results has waited."""
        self._condition = threading.Condition()
        self._made: dict[int, tuple[Made | None, BaseException | None]] = {}
        self._given, self._taken, self._end = 0, 0, -1
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._period = (0.0, 0.0, 0)  # when it began, waited before, taken before
        self._rate = 0.0

    def __iter__(self) -> Iterator[Made]:
        """Yield results."""
        try:
            while (found := self.take()) is not None:
                yield found[0]
        finally:
            self.close()

    @property
    def has_next(self) -> bool:
        """Say whether the next result is made: to take it is not to wait."""
        return self._taken in self._made

    def take(self) -> tuple[Made] | None:
        """Return the next result, alone in a tuple, or None at the end."""
        if not self._threads:
            self._period = (time.perf_counter(), 0.0, 0)
            self._start(self.readers)
        with self._condition:
            begin_s = time.perf_counter()
            while self._taken not in self._made and self._taken != self._end:
                self._condition.wait(LOOK_S)
            waited_s = time.perf_counter() - begin_s
            if self._taken == self._end:
                return None
            if self._taken:  # before the first there is nothing but to wait
                self.waited_s += waited_s
            made, problem = self._made.pop(self._taken)
            self._taken += 1
            self._condition.notify_all()
        if problem is not None:
            self.close()
            raise problem
        self._look()
        return (made,)  # type: ignore[return-value]

    def close(self) -> None:
        """End the threads, once they have made what they are at."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        """Add a thread where whoever takes waits; give up the last where it made nothing faster."""
        began_s, waited_before_s, taken_before = self._period
        now_s = time.perf_counter()
        taken = self._taken - taken_before
        if now_s - began_s < PERIOD_S or taken < 2 * self.readers or self.readers > self._most:
            return
        rate = taken / (now_s - began_s)
        waits = (self.waited_s - waited_before_s) / (now_s - began_s)
        self._period = (now_s, self.waited_s, self._taken)
        if self._rate and rate < GAIN * self._rate and self.readers > 1 and self._most > 1:
            self._most = self.readers = self.readers - 1  # the last one of them ends
        elif waits > NOTABLE and self.readers < self._most:
            self._rate = rate
            self.readers += 1
            self._start(1)
            return
        self._rate = 0.0

    def _start(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(
                target=self._run, args=(len(self._threads),), name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self, number: int) -> None:
        """Make one thing after the other."""
        while (job := self._next(number)) is not None:
            made, problem = None, None
            try:
                made = self._make(job[1])
            except BaseException as error:  # whoever takes it says so
                problem = error
            with self._condition:
                self._made[job[0]] = (made, problem)
                self._condition.notify_all()

    def _next(self, number: int) -> tuple[int, Job] | None:
        """Return the next job and its number, once there is room for its result; None at the end."""
        with self._condition:
            while not self._is_closed and number < self.readers and self._end < 0:
                if self._given - self._taken < max(self._ahead, self.readers):
                    try:
                        job = next(self._jobs)
                    except StopIteration:
                        self._end = self._given
                        self._condition.notify_all()
                        return None
                    self._given += 1
                    return self._given - 1, job
                self._condition.wait(LOOK_S)
            return None
