"""Checkpoints on disk: a folder with a full one and the deltas after it, each in a folder of its own.

    000001-full/   manifest.json  part-00000.safetensors ...
    000002-delta/  manifest.json  part-00000.safetensors  tombstones.safetensors

A checkpoint gets its name only when all its files are on disk. The manifest names the files with their checksums, and
carries a checksum of itself; in a folder that is kept encrypted (`dovetail.encryption`), the proof that whoever wrote
it had the key as well, after a space.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from dovetail.embedding.errors import DamagedFileError, TableError, storage_error
from dovetail.embedding.row_optimizer import Adam, AdamPerRow, RowOptimizer, make_row_optimizer
from dovetail.encryption import decoded, encoded, vouch, vouched

Kind = Literal["full", "delta"]
MANIFEST = "manifest.json"
WRITING = ".writing-"
"""How the name of a checkpoint begins until it is whole."""
VERSION = 2
"""Up to 1, `adam` counted the steps of each row: what is `adam-per-row` now."""


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a table is, beside its rows."""

    width: int
    optimizer: dict[str, Any]
    seed: int
    scale: float
    shard: int
    num_shards: int
    step: int

    def row_optimizer(self) -> RowOptimizer:
        """Return the optimizer that the table has."""
        return make_row_optimizer(**self.optimizer)

    @property
    def row_width(self) -> int:
        """Return the numbers of a row, values and state."""
        return self.width + self.row_optimizer().state_width(self.width)

    def must_match(self, other: TableSettings) -> None:
        """Refuse a shard of another table."""
        if _lasting(self.optimizer) != _lasting(other.optimizer):
            raise TableError(
                f"the checkpoints have optimizer {self.optimizer} and {other.optimizer}",
                hint="give checkpoints of the shards of one table",
            )
        for name in ("width", "seed", "scale"):
            if getattr(self, name) != getattr(other, name):
                raise TableError(
                    f"the checkpoints have {name} {getattr(self, name)} and {getattr(other, name)}",
                    hint="give checkpoints of the shards of one table",
                )


def _lasting(optimizer: dict[str, Any]) -> dict[str, Any]:
    """Return what all shards agree on: one may have been saved once more than another."""
    return {name: value for name, value in optimizer.items() if name != "looks"}


class CheckpointPart(NamedTuple):
    """Some rows of a checkpoint, or its tombstones."""

    keys: NDArray[np.int64]
    rows: NDArray[np.float32]
    seen: NDArray[np.int32]
    counts: NDArray[np.int32]
    tombstones: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @classmethod
    def empty(cls, row_width: int) -> CheckpointPart:
        """Return a part without rows."""
        none = np.empty(0, dtype=np.int32)
        return cls(np.empty(0, dtype=np.int64), np.empty((0, row_width), dtype=np.float32), none, none)


class TableManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint consists of."""

    kind: Kind
    settings: TableSettings
    base: str | None
    num_rows: int
    files: dict[str, str]
    host_rows: int = 0
    disk_rows: int = 0
    device_rows: int = 0
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """Write the manifest, its checksum in the first line."""
        body, path = msgspec.json.encode(self), folder / MANIFEST
        proof = vouch(path, body)
        first = checksum(body) if proof is None else f"{checksum(body)} {proof}"
        write_whole(path, first.encode() + b"\n" + body)

    @classmethod
    def read(cls, folder: Path) -> TableManifest:
        """Return the manifest of a checkpoint."""
        path = folder / MANIFEST
        first, _, body = read_whole(path).partition(b"\n")
        said, _, proof = first.decode(errors="replace").partition(" ")
        if said != checksum(body):
            raise _damaged(path, "its checksum is wrong")
        try:
            vouched(path, body, proof or None)
        except ValueError as error:
            raise _damaged(path, str(error)) from None
        try:
            manifest = msgspec.json.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise TableError(f"{path}: {error}", hint="it was written by another version of dovetail") from None
        if manifest.version > VERSION:
            raise TableError(
                f"{path}: its version is {manifest.version}, and {VERSION} is known",
                hint="it was written by a later version of dovetail: read it with that",
            )
        return manifest if manifest.version > 1 else manifest._brought_up()

    def _brought_up(self) -> TableManifest:
        """Return a manifest of version 1 in the words of today; rows are what they were."""
        optimizer = self.settings.optimizer
        if optimizer["name"] == Adam.name:
            optimizer = {**optimizer, "name": AdamPerRow.name}
        settings = msgspec.structs.replace(self.settings, optimizer=optimizer)
        return msgspec.structs.replace(self, settings=settings, version=VERSION)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One whole checkpoint."""

    folder: Path
    name: str
    manifest: TableManifest

    @property
    def path(self) -> Path:
        """Return where it lies."""
        return self.folder / self.name

    @property
    def settings(self) -> TableSettings:
        """Return what the table is, beside its rows."""
        return self.manifest.settings

    @classmethod
    def newest(cls, folder: Path) -> list[Checkpoint]:
        """Return the newest checkpoint as a chain: a full one, then the deltas up to it.

        Where `folder` is that of one checkpoint, it is the one that is meant.
        """
        if not folder.is_dir():
            raise TableError(f"{folder}: there is no such folder", hint="give the folder that table.save was given")
        if (folder / MANIFEST).is_file():
            folder, last = folder.parent, folder.name
            names = [name for name in _names_in(folder) if name <= last]
        else:
            names = _names_in(folder)
        if not names:
            raise TableError(f"{folder}: holds no checkpoint", hint="give the folder that table.save was given")
        chain = [cls(folder, names[-1], TableManifest.read(folder / names[-1]))]
        while (base := chain[0].manifest.base) is not None:
            if base not in names:
                raise TableError(
                    f"{folder}: {chain[0].name} adds to {base}, which is not there", hint="restore that folder"
                )
            chain.insert(0, cls(folder, base, TableManifest.read(folder / base)))
        return chain

    def parts(self) -> Iterator[CheckpointPart]:
        """Yield the tombstones, then the rows, every file checked before it is believed."""
        for name in sorted(self.manifest.files, reverse=True):  # tombstones first: a key may have come back
            yield read_part(self.path / name, self.manifest.files[name])


def _names_in(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a folder, oldest first."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name[:1].isdigit())


def write_part(path: Path, part: CheckpointPart) -> str:
    """Write a part, and return its checksum."""
    plain = save_tensors({name: np.ascontiguousarray(array) for name, array in part._asdict().items()})
    data = encoded(path, plain, name=_name_of(path))
    write_whole(path, data)
    return checksum(data)


def read_part(path: Path, expected: str) -> CheckpointPart:
    """Return a part whose bytes are those that were written."""
    data = read_whole(path)
    if checksum(data) != expected:
        raise _damaged(path, f"its checksum is wrong ({len(data)} bytes)")
    try:
        return CheckpointPart(**load_tensors(decoded(path, data, name=_name_of(path))))
    except (SafetensorError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None


def _name_of(path: Path) -> str:
    """Return what an encrypted part is known by: its own name, and that which its checkpoint will have."""
    return f"{path.parent.name.removeprefix(WRITING)}/{path.name}"


def checksum(data: bytes) -> str:
    """Return 128 bits of BLAKE2b as text."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(path, error, doing="written") from None


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedFileError(
            f"{path}: cannot be read: {error.strerror}", hint="restore the file, or load an older checkpoint"
        ) from None


def _damaged(path: Path, what: str) -> DamagedFileError:
    """Return the error for a file that is not what was written."""
    return DamagedFileError(f"{path}: is damaged: {what}", hint="restore the file, or load an older checkpoint")
