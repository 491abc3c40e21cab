"""Names that say which process made a thing, so that others know when nobody needs it any more."""

from __future__ import annotations

import itertools
import os
import re

from dovetail.testbed.errors import HostError

_PREFIX = "dovetail"
_OWNED = re.compile(rf"{_PREFIX}-(\d+)-\d+-.+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_numbers = itertools.count()


def owned_name(name: str) -> str:
    """Return `dovetail-PID-NUMBER-name`, which no other process has and this one has once."""
    return f"{_PREFIX}-{os.getpid()}-{next(_numbers)}-{checked_name(name)}"


def checked_name(name: str) -> str:
    """Return a name that can stand in a file's name."""
    if not _NAME.fullmatch(name):
        raise HostError(f"`{name}` is no name for a host or a limit", hint="use letters, digits, `-` and `_`")
    return name


def is_leftover(name: str) -> bool:
    """Say whether a name was given by a process that is gone."""
    owner = _OWNED.fullmatch(name)
    return owner is not None and not _is_alive(int(owner.group(1)))


def _is_alive(pid: int) -> bool:
    """Say whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
