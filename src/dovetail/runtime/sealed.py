"""Files that show when they are damaged: JSON whose last key is a checksum of all the others.

    {"step": 120, "position": 24000, ..., "checksum": "9c1185a5c5e9fc54612808977ee8f548"}

The checksum is of the rest with its keys in order and no spaces: a file that was only laid out anew is the same file.
In a folder that is kept encrypted (`dovetail.encryption`), a file may be vouched for besides: a `proof` beside the
checksum says that whoever wrote it had the key.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.encryption import vouch, vouched
from dovetail.runtime.errors import TrainingError

T = TypeVar("T")
CHECKSUM = "checksum"
PROOF = "proof"


def checksum_of_bytes(data: bytes, size: int = 16) -> str:
    """Return `size` bytes of BLAKE2b as text."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def _body(table: Any) -> bytes:
    return msgspec.json.encode(table, order="deterministic")


def checksum_of_value(value: Any) -> str:
    """Return the checksum of a value as JSON has it, whatever the order of its keys."""
    return checksum_of_bytes(_body(value))


def write_sealed(path: Path, value: msgspec.Struct, *, proven: bool = False) -> None:
    """Write a value with its checksum; the file is on disk when this returns.

    One that is to be `proven` is vouched for where its folder is kept encrypted.
    """
    table = msgspec.to_builtins(value)
    sealed = {**table, CHECKSUM: checksum_of_value(table)}
    if proven and (proof := vouch(path, _body(table))) is not None:
        sealed[PROOF] = proof
    replace_file(path, msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n", durable=True)


def read_sealed(path: Path, kind: type[T], *, hint: str, proven: bool = False) -> T:
    """Return the value in a file, or say why it is not what was written.

    One that is to be `proven` is refused where its folder is kept encrypted and nobody with the key has written it.
    """
    try:
        table = msgspec.json.decode(path.read_bytes())
        if not isinstance(table, dict):
            raise ValueError("it is no JSON object")
        if CHECKSUM not in table:
            raise ValueError("it has no checksum: it is damaged, or of another version")
        checksum, proof = table.pop(CHECKSUM), table.pop(PROOF, None)
        if checksum != checksum_of_value(table):
            raise ValueError("it is not what was written: its checksum is wrong")
        if proven:
            vouched(path, _body(table), proof)
        return msgspec.convert(table, kind)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TrainingError(f"{path} cannot be read: {why}", hint=hint) from None
