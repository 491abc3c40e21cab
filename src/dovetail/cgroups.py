"""A share of this machine's processor for as long as a `with` block lasts: control groups of Linux, version 1 or 2."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.errors import DovetailError

_PREFIX = "dovetail"
_OWNED = re.compile(rf"{_PREFIX}-(\d+)-\d+-.+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_numbers = itertools.count()
_GIVE_UP_AFTER_S = 3.0
_LEAST_QUOTA_US = 1000  # the kernel refuses less


class LimitError(DovetailError):
    """A limit on processes cannot be set here."""


def owned_name(name: str) -> str:
    """Return `dovetail-PID-NUMBER-name`, which no other process has and this one has once."""
    return f"{_PREFIX}-{os.getpid()}-{next(_numbers)}-{checked_name(name)}"


def checked_name(name: str) -> str:
    """Return a name that can stand in a file's name."""
    if not _NAME.fullmatch(name):
        raise LimitError(f"`{name}` is no name", hint="use letters, digits, `-` and `_`")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder in which groups with one controller can be made."""

    version: int
    parent: Path
    home: Path
    """The group of this process, where processes go back to: in version 2 not always the parent."""


def find_place(controller: str, *, proc: Path = Path("/proc/self")) -> Place:
    """Return where groups with `controller` (`cpu` or `memory`) go; `proc` is for tests.

    In version 1 that is below the group of this process, whose own limits so stay in force. In version 2 a group with
    processes cannot have limited children, so it is the nearest group above that hands the controller on, or can.
    """
    for kind, mount, options in _mounts(proc):
        if kind == "cgroup" and controller in options:
            home = _own_group(proc, mount, controller)
            return Place(version=1, parent=home, home=home)
        if kind == "cgroup2" and controller in _words(mount / "cgroup.controllers"):
            home = _own_group(proc, mount, "")
            return Place(version=2, parent=_nearest_that_hands_on(controller, home, mount), home=home)
    raise LimitError(
        f"no cgroup file system here has the `{controller}` controller", hint="run on Linux with /sys/fs/cgroup mounted"
    )


def _mounts(proc: Path) -> list[tuple[str, Path, list[str]]]:
    """Return kind, folder and options of every mounted file system."""
    try:
        lines = (proc / "mounts").read_text().splitlines()
    except OSError:  # not Linux
        return []
    words = [line.split() for line in lines]
    return [(kind, Path(folder), options.split(",")) for _, folder, kind, options, *_ in words]


def _own_group(proc: Path, mount: Path, controller: str) -> Path:
    """Return the group of this process; the top one where its path is that of another mount namespace."""
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount


def _nearest_that_hands_on(controller: str, home: Path, mount: Path) -> Path:
    """Return the nearest group from `home` up whose children have the controller, made so where that is allowed."""
    group = home
    while True:
        handed_on = group / "cgroup.subtree_control"
        if controller in _words(handed_on) or _try_write(handed_on, f"+{controller}"):
            return group
        if group == mount:
            break
        group = group.parent
    raise LimitError(
        f"no group from {home} up hands the `{controller}` controller on",
        hint="run as root, on the machine itself or in a privileged container",
    )


def _words(file: Path) -> list[str]:
    """Return the words of a file, none where it is not there."""
    return file.read_text().split() if file.exists() else []


def _try_write(file: Path, text: str) -> bool:
    """Write to a file and say whether that was allowed."""
    try:
        file.write_text(text)
    except OSError:
        return False
    return True


class Cgroup(ABC):
    """Processes that share limits; made on entering, removed on leaving, its processes then going back."""

    def __init__(self, controller: str, name: str) -> None:
        """Keep the name; nothing is made yet."""
        self._controller = controller
        self._name = owned_name(name)
        self._place: Place | None = None

    def __enter__(self) -> Self:
        """Make the group and set its limits; remove what dead processes left."""
        self._place = place = find_place(self._controller)
        _sweep(place)
        try:
            self.path.mkdir()
        except OSError as error:
            raise self._refused(error) from error
        try:
            self.apply()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Move the processes back and remove the group."""
        if self.path.is_dir():
            _remove(self.path, self.place.home)

    @property
    def place(self) -> Place:
        """Where groups are made, once this one is."""
        if self._place is None:
            raise LimitError(f"the group `{self._name}` is not there yet", hint="use it in a `with` block")
        return self._place

    @property
    def path(self) -> Path:
        """The group's folder."""
        return self.place.parent / self._name

    @abstractmethod
    def apply(self) -> None:
        """Write the limits into the group's files."""

    def add(self, pid: int) -> None:
        """Put a process into the group with all its threads; what it starts from then on is in it too."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError as error:
            raise LimitError(f"there is no process {pid}", hint="add a process while it runs") from error
        except OSError as error:
            raise self._refused(error) from error

    def write(self, file: str, value: object) -> None:
        """Write a value into one of the group's files."""
        try:
            (self.path / file).write_text(str(value))
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> LimitError:
        """Say what the kernel did not allow."""
        hint = "run as root, on the machine itself or in a privileged container"
        if error.errno == errno.EINVAL:
            hint = "the kernel does not take such a limit, or a group above it has a lower one"
        return LimitError(f"the `{self._controller}` limit of {self.path} was refused: {error.strerror}", hint=hint)


def _sweep(place: Place) -> None:
    """Remove the groups of processes that are gone."""
    for folder in place.parent.iterdir():
        if is_leftover(folder.name):
            with contextlib.suppress(LimitError):
                _remove(folder, place.home)


def _remove(group: Path, home: Path) -> None:
    """Move all processes of a group home and remove it; one that is just ending takes a moment."""
    deadline = time.monotonic() + _GIVE_UP_AFTER_S
    while group.exists():
        try:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (home / "cgroup.procs").write_text(pid)
            group.rmdir()
        except FileNotFoundError:  # somebody else swept it
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LimitError(
                    f"{group} cannot be removed: {error.strerror}", hint="end its processes and remove the folder"
                ) from error
            time.sleep(0.01)


class CpuQuota(Cgroup):
    """At most `cores` cores' worth of time for the processes in it, dealt out every `period_ms`.

    A process that has used up cores x period_ms of processor time stands still until the next period. A short period
    makes an even but slow core, a long one a fast core that stops and goes.
    """

    def __init__(self, name: str, cores: float, period_ms: float = 10) -> None:
        """Keep the quota, which is in force from `with` on."""
        super().__init__("cpu", name)
        self._period_us = round(period_ms * 1000)
        self._quota_us = self._checked_us(cores)

    def change(self, cores: float) -> None:
        """Give the processes more or less from now on."""
        self._quota_us = self._checked_us(cores)
        self.apply()

    def apply(self) -> None:
        """Write quota and period, the period first: the kernel holds the quota against it."""
        if self.place.version == 2:
            self.write("cpu.max", f"{self._quota_us} {self._period_us}")
        else:
            self.write("cpu.cfs_period_us", self._period_us)
            self.write("cpu.cfs_quota_us", self._quota_us)

    def _checked_us(self, cores: float) -> int:
        """Return the quota in microseconds a period."""
        quota_us = round(cores * self._period_us)
        if not 1000 <= self._period_us <= 1_000_000:
            raise LimitError(f"the period is {self._period_us / 1000:g} ms", hint="set it between 1 and 1000 ms")
        if quota_us < _LEAST_QUOTA_US:
            raise LimitError(
                f"{cores:g} cores are {quota_us} us in a period of {self._period_us / 1000:g} ms, less than 1 ms",
                hint=f"set `period_ms` to {1 / cores:.0f} or more" if cores > 0 else "set `cores` above zero",
            )
        return quota_us
