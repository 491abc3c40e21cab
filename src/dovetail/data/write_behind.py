"""Decoded parts written to the cache behind the back of whoever reads: training never waits for a disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from dovetail.data.ahead import num_cores
from dovetail.data.cache import DecodedCache, KeptPart

WRITER_NAME = "dovetail-cache"
MOST_WRITERS = 4
MOST_BYTES = 256 << 20
"""Of parts that wait to be written; where a disk is slower than that, the next epoch decodes some parts again."""


class WriteBehind:
    """Writes parts into a cache by threads of its own; those of a process that ends are written first."""

    def __init__(self, cache: DecodedCache) -> None:
        self._cache = cache
        self._lock = threading.Condition()
        self._num_bytes = self._num_parts = 0
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None

    def put(self, key: str, part: KeptPart, turn: ExitStack, on_kept: Callable[[], None]) -> bool:
        """Have a part written, and say whether it will be: not where too much waits already.

        `turn` is what others who want the part wait for: it is let go once the part is there, and then `on_kept` is
        called, or at once.
        """
        size = part.samples.num_bytes
        with self._lock:
            takes = self._process == os.getpid() and (not self._num_parts or self._num_bytes + size <= MOST_BYTES)
            if takes:
                self._num_bytes, self._num_parts = self._num_bytes + size, self._num_parts + 1
                if self._pool is None:
                    writers = max(1, min(MOST_WRITERS, num_cores() // 2))
                    self._pool = ThreadPoolExecutor(writers, thread_name_prefix=WRITER_NAME)
                self._pool.submit(self._write, key, part, size, turn, on_kept)
        if not takes:
            turn.close()
        return takes

    def _write(self, key: str, part: KeptPart, size: int, turn: ExitStack, on_kept: Callable[[], None]) -> None:
        try:
            with turn:
                is_kept = self._cache.put(key, part)
            if is_kept:
                on_kept()
        finally:
            with self._lock:
                self._num_bytes, self._num_parts = self._num_bytes - size, self._num_parts - 1
                self._lock.notify_all()

    def wait(self) -> None:
        """Wait until all parts are written that were to be."""
        with self._lock:
            while self._num_parts:
                self._lock.wait()
