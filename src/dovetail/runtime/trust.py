"""Code that a run's folder names: a model, a loss or data of the user's own, which runs when the folder is used.

Whoever can write the folder says what runs. So code is only taken from a folder that nobody else can write, or with a
word of trust.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.models.loss_names import base_name
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import BLUEPRINT
from dovetail.spec.run import Run

ROOT = 0


def check_trusted(folder: Path, run: Run, *, trust: bool, own_model: bool = False, own_data: bool = False) -> None:
    """Refuse to run code that a folder names which others can write, unless told to `trust` it.

    `own_model` and `own_data` say that those come from the caller, not by the folder's names.
    """
    if trust:
        return
    for reference in _references(run, own_model=own_model, own_data=own_data):
        for path in _written_in(folder, reference):
            why = why_not_ours(path)
            if why is not None:
                raise TrainingError(
                    f"{folder} names code to run, `{reference}`, and {path} {why}",
                    hint="look at that code and at the folder's blueprint.json, then go on with --trust "
                    "(in Python: trust=True), or make the folder yours alone",
                )


def _references(run: Run, *, own_model: bool, own_data: bool) -> list[str]:
    """Return what a run names as package.module:function or file.py:function."""
    loss = run.model.loss
    names = [*(loss.values() if isinstance(loss, dict) else [loss]), *(run.model.metrics or ()), run.validation.name]
    names += [] if own_model else [run.model.name]
    names += [] if own_data else [run.data.name]
    return [base_name(name) for name in names if name is not None and ":" in name]


def _written_in(folder: Path, reference: str) -> Iterator[Path]:
    """Return where it is written what runs: the folder and its blueprint, and the file of the code."""
    yield folder
    yield folder / BLUEPRINT
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        yield Path(place).absolute().parent
        yield Path(place)


def why_not_ours(path: Path) -> str | None:
    """Return why others than this user and root may have written a file or folder, or None where they have not."""
    try:
        status = path.stat()
    except OSError:
        return None  # whoever opens it says what is wrong
    me, mode = os.geteuid(), stat.S_IMODE(status.st_mode)
    if status.st_uid not in (me, ROOT):
        return f"belongs to {_user(status.st_uid)}"
    if mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
        return None  # as /tmp: nobody replaces the files of others
    if mode & stat.S_IWOTH:
        return f"can be written by anyone (mode {mode:04o})"
    if mode & stat.S_IWGRP and not _is_private(status.st_gid, status.st_uid):
        return f"can be written by a group (mode {mode:04o})"
    return None


def _is_private(group_id: int, user_id: int) -> bool:
    """Say whether a group is the user's own, with nobody else in it."""
    try:
        user, group = pwd.getpwuid(user_id), grp.getgrgid(group_id)
    except KeyError:
        return False
    return user.pw_gid == group_id and set(group.gr_mem) <= {user.pw_name} and group.gr_name == user.pw_name


def _user(user_id: int) -> str:
    """Return a user's name."""
    try:
        return f"the user {pwd.getpwuid(user_id).pw_name}"
    except KeyError:
        return f"the user {user_id}"
