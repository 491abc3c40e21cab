"""Keys as files: 256 bits in a file that its owner alone can read.

dovetail-key-1 8f0c...64 hexadecimal digits
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.encryption.errors import EncryptionError
from dovetail.encryption.read_encrypted import KEY_MAGIC, key_id, read_key
from dovetail.errors import MissingExtraError

MAKE = "make one with: dovetail keygen FILE"


@dataclass(frozen=True, slots=True)
class Key:
    """A key, and the file that it came from."""

    path: Path
    secret: bytes = field(repr=False)
    id: bytes
    """By which a file says what it is encrypted with."""


def check_installed() -> None:
    """Refuse to go on without the package that encrypts."""
    try:
        import cryptography  # noqa: F401, PLC0415 - loaded only where a folder is kept encrypted
    except ImportError:
        raise MissingExtraError("the package `cryptography`", extra="encryption") from None


def make_key_file(path: Path) -> str:
    """Write a new key, mode 0600, and return by what it is known; a file that is there is never replaced."""
    check_installed()
    secret = secrets.token_bytes(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask
            file.write(f"{KEY_MAGIC} {secret.hex()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        hint = "files may be encrypted with what is in it: name another file"
        raise EncryptionError(f"{path} is there already", hint=hint) from None
    except OSError as error:
        hint = "name a file in a folder that can be written"
        raise EncryptionError(f"{path} cannot be written: {error.strerror}", hint=hint) from None
    return key_id(secret).hex()


def read_key_file(path: Path) -> Key:
    """Return the key in a file; refuse one that others may read. A complaint never quotes it."""
    check_installed()
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise EncryptionError(f"the key {path} is no file", hint=MAKE)
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o077:
            hint = f"chmod 600 {path}, and think of who may have read it"
            raise EncryptionError(f"the key {path} has mode {mode:04o}, others may read it", hint=hint)
        if facts.st_uid not in (os.geteuid(), 0):
            raise EncryptionError(f"the key {path} belongs to another user", hint="keep a copy that is your own")
        secret = read_key(path)
    except OSError as error:
        raise EncryptionError(f"no key in {path}: {error.strerror}", hint=MAKE) from None
    except ValueError:
        raise EncryptionError(f"{path} is no key, or a damaged one", hint=f"{MAKE}; or bring the right file") from None
    return Key(path, secret, key_id(secret))
