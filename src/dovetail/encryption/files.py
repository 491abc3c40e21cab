"""What lies in folders that are kept encrypted: written by whoever has the key, plain in all others.

Each function takes the path that a file has or will have, which says whether it is encrypted, and the `name` by which
it is known, which is authenticated: by default the path's own. A damaged file is a `ValueError`, a wrong or missing key
an `EncryptionError`.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.encryption.errors import EncryptionError
from dovetail.encryption.folders import key_for
from dovetail.encryption.key_file import Key
from dovetail.encryption.read_encrypted import (
    HEAD,
    PIECE_BYTES,
    Pieces,
    derived,
    key_id_in,
    new_head,
    plain_pieces,
)

GIVE_KEY = "give the key that it was written with: --key-file FILE, or checkpoint.key_file in the run file"


class EncryptedWriter:
    """Writes a stream as an encrypted file; `finish` writes the last piece, without which it is none."""

    def __init__(self, stream: BinaryIO, key: Key, name: str) -> None:
        """Begin with the head."""
        head = new_head(key.secret)
        self._stream, self._pieces = stream, Pieces(key.secret, head, name)
        self._number = 0
        self._waiting = bytearray()
        stream.write(head)

    def write(self, data: Any) -> None:
        """Take in more; whole pieces are written, the last of them when it is known whether more comes."""
        view = memoryview(data).cast("B")
        while len(view):
            if len(self._waiting) == PIECE_BYTES:
                self._put(is_last=False)
            size = PIECE_BYTES - len(self._waiting)
            self._waiting += view[:size]
            view = view[size:]

    def finish(self) -> None:
        """Write the last piece."""
        self._put(is_last=True)

    def _put(self, *, is_last: bool) -> None:
        self._stream.write(self._pieces.encrypt(self._number, bytes(self._waiting), is_last))
        self._number += 1
        self._waiting.clear()


def encoded(path: Path, data: Any, *, name: str | None = None) -> Any:
    """Return what a file at a path holds of some data: the data, or these encrypted."""
    key = key_for(path)
    return data if key is None else encrypted(key, name or path.name, data)


def encrypted(key: Key, name: str, data: Any) -> bytes:
    """Return some data as an encrypted file."""
    head, view = new_head(key.secret), memoryview(data).cast("B")
    pieces, found = Pieces(key.secret, head, name), [head]
    for number, begin in enumerate(range(0, len(view), PIECE_BYTES) or [0]):
        end = begin + PIECE_BYTES
        found.append(pieces.encrypt(number, view[begin:end], end >= len(view)))
    return b"".join(found)


def decoded(path: Path, data: Any, *, name: str | None = None) -> Any:
    """Return the data of a file at a path: what it holds, or that decrypted.

    Where the folder is kept encrypted, a file that is not is refused: nobody vouches for it.
    """
    key, found = key_for(path), key_id_in(data)
    if key is None and found is None:
        return data
    check_same_key(path, key, found)
    return b"" if key is None else b"".join(plain_pieces(key.secret, name or path.name, data))


def read_file(path: Path, *, name: str | None = None) -> Any:
    """Return the data of a file."""
    return decoded(path, path.read_bytes(), name=name)


def is_encrypted(path: Path) -> bool:
    """Say whether a file is encrypted, whoever has the key."""
    with path.open("rb") as file:
        return key_id_in(file.read(HEAD.size)) is not None


def check_same_key(path: Path, key: Key | None, found: bytes | None) -> None:
    """Refuse a file without the key that it says it is encrypted with."""
    if key is None:
        raise EncryptionError(f"{path} was written with a key, and none is given", hint=GIVE_KEY)
    if found is None:
        raise EncryptionError(
            f"{path} was written without a key, and its folder is kept encrypted with {key.path}",
            hint="a folder is encrypted from its first file on: take the one that was written with the key, or leave "
            "the key away if this one is yours; a plain run becomes an encrypted one by train --start-from",
        )
    if found != key.id:
        raise EncryptionError(
            f"{path} was written with the key {found.hex()}, and {key.path} is the key {key.id.hex()}", hint=GIVE_KEY
        )


def vouch(path: Path, data: bytes) -> str | None:
    """Return what proves that whoever wrote a plain file at a path had the key; None where it needs none."""
    key = key_for(path)
    return None if key is None else f"{key.id.hex()}:{_proof(key, path, data)}"


def vouched(path: Path, data: bytes, proof: str | None) -> None:
    """Refuse a plain file that nobody with the key has written; ValueError where it was changed since."""
    key = key_for(path)
    if key is None:
        return  # whoever only looks needs none
    check_same_key(path, key, None if proof is None else key_id_of(proof))
    if not hmac.compare_digest(str(proof).partition(":")[2], _proof(key, path, data)):
        raise ValueError("it is not what was written with the key")


def key_id_of(proof: str) -> bytes:
    """Return by which key a proof was made."""
    try:
        return bytes.fromhex(proof.partition(":")[0])
    except ValueError:
        return proof.encode()[:8]


def _proof(key: Key, path: Path, data: bytes) -> str:
    secret = derived(key.secret, b"", b"proof")
    return hmac.new(secret, path.name.encode() + b"\0" + data, hashlib.sha256).hexdigest()
