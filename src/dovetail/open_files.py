"""How many files a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

MOST_FILES = 1 << 16


def allow_many_files() -> None:
    """Have as many files open as this user may at all: connections take some, checkpoints and rows on disk others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MOST_FILES)) if hard > 0 else MOST_FILES, hard))


def share_of_files(share: int, most: int) -> int:
    """Return one part in `share` of the files that may be open, within 16 and `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(16, min(most, soft // share))
