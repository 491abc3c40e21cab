"""Things made ahead by threads and handed out in order: by as many as keep whoever takes them from waiting."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")

SPARE = 0.03
"""The part of its time that whoever takes may wait: where it is more, threads are too few."""
PERIOD_S = 0.1
"""How long is looked at before threads are added, or those that brought nothing are given up."""
GAIN = 1.05
"""How much faster things must come for new threads to stay."""
LOOK_S = 0.2


def num_cores() -> int:
    """Return how many cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class MadeAhead(Generic[Job, Made]):
    """What `make` makes of jobs, in their order, `ahead` of whoever iterates.

    With `readers` None the number of threads is found by measuring: it begins with one, and as long as whoever takes
    has to wait, or says that it would take more (`wish`), as many are added as would make up for that, twice as many at
    most at a time, up to `most` or the number of cores. Where that makes nothing faster they go again, and are tried
    again later, each time after twice as long. What a job raises is raised where its result is taken. Leaving the loop,
    or `close`, ends the threads.
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
        self._wished_s, self._wishes_since_s = 0.0, -1.0
        lock = threading.Lock()
        self._news, self._room = threading.Condition(lock), threading.Condition(lock)
        """For whoever takes: the next result is made. For the threads: there is room for another one."""
        self._made: dict[int, tuple[Made | None, BaseException | None]] = {}
        self._given, self._taken, self._end = 0, 0, -1
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._period = (0.0, 0.0, 0)  # when it began, waited and wished before, taken before
        self._before: tuple[int, float] | None = None
        """How many threads there were before some were added, and how many results a second they brought."""
        self._pause, self._resumes_s = 1, 0.0

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

    def wish(self) -> None:
        """Say that another result would be taken now: there is other work first, so it is not waited for yet."""
        if not self.has_next and self._wishes_since_s < 0:
            self._wishes_since_s = time.perf_counter()

    def take(self) -> tuple[Made] | None:
        """Return the next result, alone in a tuple, or None at the end."""
        if not self._threads:
            self._period = (time.perf_counter(), 0.0, 0)
            count, self.readers = self.readers, 0
            self._start(count)
        with self._news:
            begin_s = time.perf_counter()
            if self._wishes_since_s >= 0:
                self._wished_s += begin_s - self._wishes_since_s
                self._wishes_since_s = -1.0
            while self._taken not in self._made and self._taken != self._end:
                self._news.wait(LOOK_S)
            waited_s = time.perf_counter() - begin_s
            if self._taken == self._end:
                return None
            if self._taken:  # before the first there is nothing but to wait
                self.waited_s += waited_s
            made, problem = self._made.pop(self._taken)
            self._taken += 1
            self._room.notify()
        if problem is not None:
            self.close()
            raise problem
        self._look()
        return (made,)  # type: ignore[return-value]

    def close(self) -> None:
        """End the threads, once they have made what they are at."""
        with self._news:
            self._is_closed = True
            self._room.notify_all()
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        """Add threads where they are waited for; give up those that made nothing faster."""
        began_s, lacked_before_s, taken_before = self._period
        now_s = time.perf_counter()
        taken, span_s = self._taken - taken_before, now_s - began_s
        if span_s < PERIOD_S or taken < 2 * self.readers:
            return
        lacked_s = self.waited_s + self._wished_s
        rate, waited = taken / span_s, (lacked_s - lacked_before_s) / span_s
        self._period = (now_s, lacked_s, self._taken)
        before, self._before = self._before, None
        if before is not None and rate < GAIN * before[1]:
            self.readers = before[0]  # the others end
            self._pause *= 2
            self._resumes_s = now_s + self._pause * PERIOD_S
        elif waited > SPARE and self.readers < self._most and now_s >= self._resumes_s:
            self._before = (self.readers, rate)
            wanted = math.ceil(self.readers / (1 - min(waited, 0.5)))
            self._start(min(wanted, self._most) - self.readers)

    def _start(self, count: int) -> None:
        """Have so many threads more."""
        first, self.readers = self.readers, self.readers + count
        for number in range(first, self.readers):
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, args=(number,), name=name, daemon=True)
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
            with self._news:
                self._made[job[0]] = (made, problem)
                if job[0] == self._taken:
                    self._news.notify()

    def _next(self, number: int) -> tuple[int, Job] | None:
        """Return the next job and its number, once there is room for its result; None at the end."""
        with self._room:
            while not self._is_closed and number < self.readers and self._end < 0:
                if self._given - self._taken < self._ahead + self.readers:  # each may be at one while so many lie ready
                    try:
                        job = next(self._jobs)
                    except StopIteration:
                        self._end = self._given
                        self._news.notify()
                        break
                    self._given += 1
                    return self._given - 1, job
                self._room.wait(LOOK_S)
            self._room.notify()  # who ends has heard what was another's
            return None
