"""Hosts with links of their own speed, all on this machine and cut off from its network.

Every host is a network namespace with one cable to a bridge. The bridge sits in a namespace of its own, the hub: no
packet leaves the machine, and no address clashes with one in use. What is to be reached by the hosts (servers, a
coordinator) goes into a host, or into the hub.

    root (untouched)      hub                          hosts
                          bridge 10.213.0.1  ---host0--- eth0 10.213.0.2
                                             ---host1--- eth0 10.213.0.3
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.cgroups import LimitError, checked_name, is_leftover, owned_name

FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_NETWORK = "10.213.0"
_MOST_HOSTS = 253
_BURST_S = 0.005
_LEAST_BURST_BYTES = 65_536  # one full segment of a veth cable
_QUEUE_S = 0.05


class HostError(LimitError):
    """A host of the test bed cannot be made or used here."""


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


class Hosts:
    """Network namespaces joined by a bridge, each with a rate in bytes per second for each direction of its link."""

    def __init__(self, names: Sequence[str], rates: Sequence[float | None] | None = None) -> None:
        """Keep names and rates; None is a link without a limit."""
        if len(set(names)) != len(names) or not 1 <= len(names) <= _MOST_HOSTS:
            raise HostError(f"hosts are named {', '.join(names)}", hint=f"give 1 to {_MOST_HOSTS} different names")
        if rates is not None and len(rates) != len(names):
            raise HostError(f"there are {len(rates)} rates for {len(names)} hosts", hint="give one each, or none")
        self._number_of = {checked_name(name): number for number, name in enumerate(names)}
        self._rates = dict(zip(names, rates or [None] * len(names), strict=True))
        self._prefix = owned_name("hosts")

    def __enter__(self) -> Self:
        """Make namespaces and links; remove what dead processes left."""
        if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
            raise HostError("hosts cannot be made here", hint="run as root, with `ip` and `tc` (iproute2) installed")
        _sweep()
        try:
            self._make_hub()
            for name in self._number_of:
                self._make_host(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the namespaces, and with them cables and bridge; each lasts until the last process in it ends."""
        for namespace in [self.hub, *map(self.namespace, self._number_of)]:
            if (FOLDER / namespace).exists():
                with contextlib.suppress(HostError):
                    _run("ip", "netns", "delete", namespace)

    @property
    def hub(self) -> str:
        """The namespace of the bridge, for processes that all hosts are to reach."""
        return f"{self._prefix}-hub"

    @property
    def bridge_address(self) -> str:
        """The hub's address, without a limit of its own."""
        return f"{_NETWORK}.1"

    def namespace(self, name: str) -> str:
        """Return what a process of this host gives to `enter`."""
        return f"{self._prefix}-{self._number(name)}-{name}"

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"{_NETWORK}.{self._number(name) + 2}"

    def change_rate(self, name: str, bytes_per_s: float | None) -> None:
        """Set the rate of a host's link, in both directions, from now on."""
        _set_rate(self.namespace(name), "eth0", bytes_per_s)
        _set_rate(self.hub, self._cable(name), bytes_per_s)
        self._rates[name] = bytes_per_s

    def _make_hub(self) -> None:
        """Make the hub and its bridge."""
        _run("ip", "netns", "add", self.hub)
        _run("ip", "-n", self.hub, "link", "set", "lo", "up")
        _run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.hub, "address", "add", f"{self.bridge_address}/24", "dev", "bridge")
        _run("ip", "-n", self.hub, "link", "set", "bridge", "up")

    def _make_host(self, name: str) -> None:
        """Make a host and its cable, one end of it in the bridge."""
        own, cable = self.namespace(name), self._cable(name)
        _run("ip", "netns", "add", own)
        _run("ip", "-n", self.hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", own)
        _run("ip", "-n", self.hub, "link", "set", cable, "master", "bridge", "up")
        _run("ip", "-n", own, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        _run("ip", "-n", own, "link", "set", "lo", "up")
        _run("ip", "-n", own, "link", "set", "eth0", "up")
        if self._rates[name] is not None:
            self.change_rate(name, self._rates[name])

    def _cable(self, name: str) -> str:
        """Return the name of the hub's end of a host's cable."""
        return f"host{self._number(name)}"

    def _number(self, name: str) -> int:
        """Return a host's number."""
        if name not in self._number_of:
            raise HostError(f"there is no host `{name}`", hint=f"known are: {', '.join(self._number_of)}")
        return self._number_of[name]


def _set_rate(namespace: str, interface: str, bytes_per_s: float | None) -> None:
    """Hold what leaves an interface to a rate, with a queue of 50 ms; None lifts the limit."""
    if bytes_per_s is None:
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "pfifo")
        return
    if not bytes_per_s >= 1000:
        raise HostError(f"a link has a rate of {bytes_per_s} bytes per second", hint="set it to 1000 or more, or None")
    burst_bytes = max(_LEAST_BURST_BYTES, round(bytes_per_s * _BURST_S))
    queue_bytes = burst_bytes + round(bytes_per_s * _QUEUE_S)
    bucket = ["rate", f"{round(bytes_per_s)}bps", "burst", str(burst_bytes), "limit", str(queue_bytes)]
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", *bucket)


def _sweep() -> None:
    """Remove the namespaces of processes that are gone."""
    for leftover in FOLDER.iterdir() if FOLDER.is_dir() else ():
        if is_leftover(leftover.name):
            with contextlib.suppress(HostError):
                _run("ip", "netns", "delete", leftover.name)


def _run(*command: str) -> None:
    """Run one command; tell what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise HostError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}",
            hint="run as root, on a kernel with network namespaces, veth, bridge and tbf",
        )
