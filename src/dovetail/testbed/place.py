"""Where in the cgroup file system a group can be made: version 1 or 2, whichever has the controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail.testbed.errors import HostError


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
    raise HostError(
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
    raise HostError(
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
