"""CURVE keys as files: `NAME.public` for everyone who talks to NAME, `NAME.secret` for NAME alone.

The folder has mode 0700 and its files 0600. A process elsewhere needs its own secret and the public ones. Who has a
public key in a listener's folder may call it.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

import zmq

from dovetail.atomic_file import replace_file
from dovetail.transport.errors import KeyRingError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PUBLIC, SECRET = ".public", ".secret"
KEY = re.compile(rb"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
"""Z85 text of 32 bytes."""


def make_keys(folder: Path, name: str) -> None:
    """Write a new key pair for the process `name`; one that is there already is replaced."""
    if not NAME.fullmatch(name):
        raise KeyRingError(f"{name!r} cannot name a key", hint="use letters, digits, `_`, `-` and `.`, at most 64")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    public, secret = zmq.curve_keypair()
    replace_file(folder / f"{name}{SECRET}", secret + b"\n", private=True)
    replace_file(folder / f"{name}{PUBLIC}", public + b"\n", private=True)


def drop_keys(folder: Path, name: str) -> None:
    """Remove the key pair of the process `name`: it may call nobody any more who reads the folder."""
    for suffix in (PUBLIC, SECRET):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


class KeyRing:
    """The keys in a folder."""

    def __init__(self, folder: Path) -> None:
        """Look into the folder when a key is needed."""
        self._folder = folder
        self._names: dict[bytes, str] | None = None

    def own(self, name: str) -> tuple[bytes, bytes]:
        """Return the public and the secret key of `name`."""
        path = self._folder / f"{name}{SECRET}"
        secret = _read(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise KeyRingError(f"{path} has mode {mode:04o}, others could read it", hint=f"chmod 600 {path}")
        return self.public(name), secret

    def public(self, name: str) -> bytes:
        """Return the public key of `name`."""
        return _read(self._folder / f"{name}{PUBLIC}")

    def allowed(self) -> dict[bytes, str]:
        """Return the names behind the listed public keys, as they were when the folder was last read."""
        if self._names is None:
            self._names = self._read_all()
        return self._names

    def name_of(self, public: bytes) -> str | None:
        """Return who has a public key, or None; the folder is read again for one that is not known."""
        name = self.allowed().get(public)
        if name is None:
            self._names = self._read_all()
            name = self._names.get(public)
        return name

    def _read_all(self) -> dict[bytes, str]:
        """Read the public keys; a broken one lists nobody."""
        names = {}
        for path in self._folder.glob(f"*{PUBLIC}"):
            try:
                names[_read(path)] = path.name.removesuffix(PUBLIC)
            except KeyRingError:  # It went away, or was never a key: whoever holds it is refused, and that is logged.
                continue
        return names


def _read(path: Path) -> bytes:
    """Return the key in a file; a complaint never quotes it."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise KeyRingError(f"no key in {path}: {error.strerror}", hint="keys are made when a run starts") from None
    if not KEY.fullmatch(key):
        raise KeyRingError(f"{path} is not a key", hint="expected 40 characters of Z85; make the keys again")
    return key
