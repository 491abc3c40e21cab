"""Network namespaces: the calling thread's view of the network."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from dovetail.cgroups import HostError

FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace, by its name.

    Call it before sockets are made and threads are started: those stay where they were made; threads started and
    processes forked later are in the new one.
    """
    with _opened(FOLDER / namespace) as descriptor:
        _set(descriptor, namespace)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Move the calling thread into a namespace and back again; sockets made there stay there."""
    with _opened(Path("/proc/thread-self/ns/net")) as before:
        enter(namespace)
        try:
            yield
        finally:
            _set(before, "this process's own")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for as long as it is needed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(
            f"the network namespace {path} cannot be opened: {error.strerror}", hint="enter it while its owner runs"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set(descriptor: int, what: str) -> None:
    """Call setns, which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise HostError(f"the network namespace `{what}` cannot be entered: {reason}", hint="run as root")
