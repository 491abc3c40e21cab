"""Which folders this process keeps encrypted, and with which key.

A path belongs to the nearest folder above it that was named. Keys are read when they are first needed: who only looks
at figures of an encrypted run needs none.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from dovetail.encryption.key_file import Key, read_key_file


@dataclass(slots=True)
class _EncryptedFolder:
    """A folder's key: its file, whether somebody named that for now, and the key once it was read."""

    key_file: Path
    is_given: bool
    key: Key | None = None


_folders: dict[str, _EncryptedFolder] = {}
_lock = threading.Lock()


def keep_encrypted(folder: str | Path, key_file: str | Path | None, *, given: bool = True) -> None:
    """Have what lies in a folder encrypted with the key in a file from now on, or with none.

    What the user has `given` is not set otherwise by what a run's own files say.
    """
    place = os.path.abspath(folder)  # noqa: PTH100 - as it is called, links and all
    with _lock:
        known = _folders.get(place)
        if known is not None and known.is_given and not given:
            return
        if key_file is None:
            _folders.pop(place, None)
            return
        path = Path(os.path.abspath(key_file))  # noqa: PTH100 - the same
        if known is None or known.key_file != path or given:
            _folders[place] = _EncryptedFolder(path, given)


def key_file_of(folder: str | Path) -> Path | None:
    """Return where the key of a folder is that was named itself, whether or not it can be read."""
    kept = _folders.get(os.path.abspath(folder))  # noqa: PTH100 - the same
    return None if kept is None else kept.key_file


def key_for(path: str | Path) -> Key | None:
    """Return the key that a path is encrypted with, or None where it is plain."""
    if not _folders:
        return None
    place = os.path.abspath(path)  # noqa: PTH100 - the same
    while True:
        kept = _folders.get(place)
        if kept is not None:
            if kept.key is None:
                kept.key = read_key_file(kept.key_file)
            return kept.key
        above = os.path.dirname(place)  # noqa: PTH120 - many are asked for, and these are quick
        if above == place:
            return None
        place = above
