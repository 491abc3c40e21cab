"""Waiting until something is so, as long as a slow and busy machine may take."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], complaint: str | Callable[[], str] = "", timeout_s: float = 120.0) -> None:
    """Look again and again until something is so; complain where it never is."""
    until_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until_s, complaint if isinstance(complaint, str) else complaint()
        time.sleep(0.02)
