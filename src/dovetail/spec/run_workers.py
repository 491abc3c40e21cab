"""What the workers of a run file may be called, and what they may keep."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dovetail.errors import SpecError

PROCESS_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""A name that is a file's as well: of a log, of a key."""
OTHERS = re.compile(r"coordinator|launcher|server-[0-9]+", re.IGNORECASE)
"""What the other processes of a run are called; some disks take capitals for small letters."""


def check_worker_name(name: str) -> None:
    """Refuse a name that is no file's, or that another process of every run has."""
    if not PROCESS_NAME.fullmatch(name):
        raise SpecError(
            f'has one called "{name}"',
            key="worker",
            hint="a name is of letters, digits, `_`, `-` and `.`, at most 64, and does not begin with `.`",
        )
    if OTHERS.fullmatch(name):
        raise SpecError(
            f'has one called "{name}"',
            key="worker",
            hint="`coordinator`, `launcher` and `server-N` are other processes of the run; choose another name",
        )


def check_caches(budgets_bytes: Sequence[int], mode: str) -> None:
    """Refuse memory for kept rows where workers want the newest there are."""
    if mode == "async" and any(budgets_bytes):
        raise SpecError(
            f'is {max(budgets_bytes)}, and mode is "async", whose workers compute with the newest rows there are',
            key="worker.cache_bytes",
            hint='leave cache_bytes away, or set mode = "ssp", in which rows may be `staleness` tasks old',
        )
