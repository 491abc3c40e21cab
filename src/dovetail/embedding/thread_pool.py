"""Threads that share a batch of rows among them: each takes a stretch of it, in kernels that let the others run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

FEWEST = 4096
"""Rows worth a thread of their own: fewer are done before it has begun."""

Result = TypeVar("Result")


class RowThreads:
    """Whoever calls, and `threads` - 1 others; nothing of it locks."""

    def __init__(self, threads: int = 1, *, fewest: int | None = None) -> None:
        """Start the others as they are needed; fewer rows than `fewest` are not worth one."""
        self.threads, self._fewest = threads, FEWEST if fewest is None else fewest
        self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="dovetail-rows") if threads > 1 else None

    def share(self, count: int, work: Callable[[int, int], Result]) -> list[Result]:
        """Call `work` with stretches, from where to where, that make up `count` rows; return what each came to."""
        parts = min(self.threads, count // self._fewest)
        if self._pool is None or parts < 2:
            return [work(0, count)]
        bounds = [count * part // parts for part in range(parts + 1)]
        others = [self._pool.submit(work, bounds[part], bounds[part + 1]) for part in range(1, parts)]
        try:
            own = work(0, bounds[1])
        finally:  # nobody may still be at work when this ends, whatever happened
            results = [other.exception() or other.result() for other in others]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [own, *results]  # type: ignore[list-item]

    def close(self) -> None:
        """End the others."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
