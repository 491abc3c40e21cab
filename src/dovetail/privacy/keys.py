"""Secret keys of a private run, and those that are derived from them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

KEY_BYTES = 32
NOISE_KEY = "noise.secret"
"""In the folder of keys: of all noise. Coordinator and servers have it, or the one process that trains; no worker."""
SAMPLING_KEY = "sampling.secret"
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


def derived(key: bytes, *purpose: str | int) -> bytes:
    """Return the key for a purpose, such as ("step", 12): nobody finds one of two such keys from the other."""
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (str(each).encode() for each in purpose))
    return hmac.new(key, message, hashlib.sha256).digest()
