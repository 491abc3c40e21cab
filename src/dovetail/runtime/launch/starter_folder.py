"""Where the process that starts workers keeps its socket: in a folder that a later start can tell to be nobody's.

Python makes a folder `pymp-...` for it, which stays where this process is killed. Ours is around that: it has a file
that is locked for as long as this process lives, so whoever gets the lock may remove it, whatever the process ids say.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing import util
from pathlib import Path

PREFIX = "dovetail-starter-"
HELD = "held"


@cache
def keep_starter_folder() -> Path:
    """Have the process that starts workers keep its socket in a folder of ours, from the first time on."""
    sweep_starter_folders()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    draft = os.open(folder / f".{HELD}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)  # open until this process ends
    fcntl.flock(draft, fcntl.LOCK_EX)
    (folder / f".{HELD}").rename(folder / HELD)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before
    util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-200)
    return folder


def sweep_starter_folders() -> None:
    """Remove the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it goes away, or is another user's
            held = os.open(folder / HELD, os.O_WRONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
