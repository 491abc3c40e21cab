"""A cgroup for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import errno
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from dovetail.testbed.errors import HostError
from dovetail.testbed.owners import is_leftover, owned_name
from dovetail.testbed.place import Place, find_place

_GIVE_UP_AFTER_S = 3.0


class Group(ABC):
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
            raise HostError(f"the group `{self._name}` is not there yet", hint="use it in a `with` block")
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
            raise HostError(f"there is no process {pid}", hint="add a process while it runs") from error
        except OSError as error:
            raise self._refused(error) from error

    def write(self, file: str, value: object) -> None:
        """Write a value into one of the group's files."""
        try:
            (self.path / file).write_text(str(value))
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> HostError:
        """Say what the kernel did not allow."""
        hint = "run as root, on the machine itself or in a privileged container"
        if error.errno == errno.EINVAL:
            hint = "the kernel does not take such a limit, or a group above it has a lower one"
        return HostError(f"the `{self._controller}` limit of {self.path} was refused: {error.strerror}", hint=hint)


def _sweep(place: Place) -> None:
    """Remove the groups of processes that are gone."""
    for folder in place.parent.iterdir():
        if is_leftover(folder.name):
            with contextlib.suppress(HostError):
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
                raise HostError(
                    f"{group} cannot be removed: {error.strerror}", hint="end its processes and remove the folder"
                ) from error
            time.sleep(0.01)
