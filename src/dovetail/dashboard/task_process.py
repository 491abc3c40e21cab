"""The process that plans and simulates for the page: a line in, a line out, so that it can be ended at its deadline."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from dovetail.dashboard.tasks import encoded, get_ready

MOST_MEMORY = 16 << 30
"""Bytes of addresses: a problem that needs more is told so, and the machine is none the worse."""


def main() -> None:
    """Answer tasks until nobody asks any more."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    get_ready()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(encoded(line) + b"\n")
        sys.stdout.buffer.flush()
