"""Read a file that Dovetail has encrypted. Needs Python 3.9 and the package `cryptography`, not Dovetail.

    python read_encrypted.py KEY_FILE FILE OUT

A file is a head and pieces of a mebibyte, each encrypted and authenticated by AES-256-GCM:

    16 bytes   DOVETAIL-AES-1 and two line ends
     8 bytes   which key it is, no secret
    32 bytes   salt: the file's own key is HKDF-SHA256(key, salt, "dovetail file")
    12 bytes   the nonce of the first piece; that of piece i is this number xor i
     4 bytes   the bytes of a piece before it is encrypted
    pieces     each with a tag of 16 bytes

Authenticated with each piece are the head, the piece's number, whether it is the last one, and the file's name: pieces
cannot be left out, doubled or put elsewhere, nor a file in the place of another name.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAGIC = b"DOVETAIL-AES-1\n\n"
HEAD = struct.Struct("<16s8s32s12sI")
PLACE = struct.Struct("<QB")
TAG_BYTES = 16
PIECE_BYTES = 1 << 20
KEY_MAGIC = "dovetail-key-1"


def derived(secret: bytes, salt: bytes, purpose: bytes, size: int = 32) -> bytes:
    """Return a key for one purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - loaded only where it is used
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(algorithm=SHA256(), length=size, salt=salt, info=b"dovetail " + purpose).derive(secret)


def key_id(secret: bytes) -> bytes:
    """Return by which 8 bytes a key is known; they tell nothing of it."""
    return derived(secret, b"", b"key id", 8)


class Pieces:
    """The cipher of one file: encrypts and decrypts its pieces."""

    def __init__(self, secret: bytes, head: bytes, name: str) -> None:
        """Take the key, and the head of the file that has this name."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - loaded only where it is used

        magic, _, salt, nonce, self.piece_bytes = HEAD.unpack(head)
        if magic != MAGIC or not 0 < self.piece_bytes <= 1 << 30:
            raise ValueError("it is no file that Dovetail has encrypted")
        self._cipher: Any = AESGCM(derived(secret, salt, b"file"))
        self._nonce, self._with = int.from_bytes(nonce, "little"), head + name.encode()

    def encrypt(self, number: int, data: Any, is_last: bool) -> bytes:
        """Return a piece as it lies in the file."""
        return bytes(self._cipher.encrypt(self._nonce_of(number), data, self._with + PLACE.pack(number, is_last)))

    def decrypt(self, number: int, data: Any, is_last: bool) -> bytes:
        """Return a piece as it was; ValueError where it is not what was written there."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - loaded only where it is used

        try:
            with_it = self._with + PLACE.pack(number, is_last)
            return bytes(self._cipher.decrypt(self._nonce_of(number), data, with_it))
        except InvalidTag:
            raise ValueError("it is damaged, or another file was put in its place") from None

    def _nonce_of(self, number: int) -> bytes:
        return (self._nonce ^ number).to_bytes(12, "little")


def new_head(secret: bytes) -> bytes:
    """Return the head of a new file, with salt and nonce drawn for it alone."""
    return HEAD.pack(MAGIC, key_id(secret), os.urandom(32), os.urandom(12), PIECE_BYTES)


def key_id_in(head: Any) -> bytes | None:
    """Return which key a file is encrypted with; None where it is not encrypted."""
    if len(head) < HEAD.size or bytes(head[: len(MAGIC)]) != MAGIC:
        return None
    return bytes(head[len(MAGIC) : len(MAGIC) + 8])


def plain_pieces(secret: bytes, name: str, data: Any) -> Iterator[bytes]:
    """Yield what an encrypted file holds, each piece checked before it is given out; ValueError where one is not."""
    view = memoryview(data)
    if len(view) < HEAD.size:
        raise ValueError("it was cut short")
    pieces, at, number = Pieces(secret, bytes(view[: HEAD.size]), name), HEAD.size, 0
    while True:
        end = at + pieces.piece_bytes + TAG_BYTES
        yield pieces.decrypt(number, view[at:end], end >= len(view))
        if end >= len(view):
            return
        at, number = end, number + 1


def read_key(path: Path) -> bytes:
    """Return the key in a file; a complaint never quotes it."""
    magic, _, text = path.read_text(encoding="ascii").strip().partition(" ")
    secret = bytes.fromhex(text)
    if magic != KEY_MAGIC or len(secret) != 32:
        raise ValueError("it is no key")
    return secret


def main() -> None:
    """Decrypt one file."""
    if len(sys.argv) != 4:
        sys.exit(f"usage: python {sys.argv[0]} KEY_FILE FILE OUT")
    key_file, path, out = map(Path, sys.argv[1:])
    try:
        secret, data = read_key(key_file), path.read_bytes()
    except ValueError:
        sys.exit(f"error: {key_file} is no key of Dovetail")
    except OSError as error:
        sys.exit(f"error: {error}")
    found = key_id_in(data)
    if found != key_id(secret):
        sys.exit(f"error: {path} is encrypted with another key" if found else f"error: {path} is not encrypted")
    draft = out.with_name(f".{out.name}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(plain_pieces(secret, path.name, data))
        draft.replace(out)
    except (ValueError, OSError) as error:
        draft.unlink(missing_ok=True)
        sys.exit(f"error: {path}: {error}")


if __name__ == "__main__":
    main()
