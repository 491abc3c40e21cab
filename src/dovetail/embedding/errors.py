"""What can go wrong with a table.

DovetailError
└── TableError            a request the table cannot meet: sizes, budgets, files of another table
    ├── DamagedFileError  a file whose checksum or length is wrong
    └── StorageError      the disk said no: full, read-only, gone
"""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import DovetailError


class TableError(DovetailError):
    """A request that a table cannot meet."""


class DamagedFileError(TableError):
    """A file that is not what was written: cut short, or with other bits."""


class StorageError(TableError):
    """The disk refused: it is full, read-only or gone."""


def storage_error(path: Path, error: OSError, *, doing: str) -> StorageError:
    """Return what the operating system said about `path`, with the way out."""
    return StorageError(
        f"{path}: cannot be {doing}: {error.strerror or error}",
        hint="free some space or give a folder that can be written; what was acknowledged before is whole",
    )
