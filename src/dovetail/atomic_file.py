"""Files that are never seen half written: written beside the old one, then renamed, so that one of the two is whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes, *, durable: bool = False, private: bool = False) -> None:
    """Put a file in the place of another, in one go; a full disk leaves the old one.

    With `durable` it is on disk when this returns, a power cut included; with `private` only this user can read it.
    """
    with replacing(path, durable=durable, private=private) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, durable: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes its name at the end of the block, or is gone where that failed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    try:
        mode = 0o600 if private else 0o666
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
