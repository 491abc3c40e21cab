"""Secret keys of a private run, and those that are derived from them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from dovetail.errors import DovetailError

KEY_BYTES = 32
NOISE_KEY = "noise.key"
"""In the folder of keys: of all noise. Coordinator and servers have it, or the one process that trains; no worker."""
SAMPLING_KEY = "sampling.key"
"""In the folder of keys: of the draw of each step's samples. Who reads samples has it."""


def make_secret(path: Path) -> None:
    """Write a new key, which only this user may read, where there is none yet."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(file, "wb") as opened:
        opened.write(secrets.token_bytes(KEY_BYTES))
        opened.flush()
        os.fsync(opened.fileno())


def read_secret(folder: Path, name: str) -> bytes:
    """Return a key in a run's folder of keys, or say that it is gone."""
    path = folder / name
    try:
        key = path.read_bytes()
    except OSError as error:
        raise DovetailError(
            f"{path} cannot be read: {error.strerror}", hint="the run goes on with a new key: start it with --resume"
        ) from None
    if len(key) != KEY_BYTES:
        raise DovetailError(
            f"{path} holds {len(key)} bytes, expected {KEY_BYTES}", hint="delete it, and start the run with --resume"
        )
    return key


def derived(key: bytes, *purpose: str | int) -> bytes:
    """Return the key for a purpose, such as ("step", 12): nobody finds one of two such keys from the other."""
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (str(each).encode() for each in purpose))
    return hmac.new(key, message, hashlib.sha256).digest()
