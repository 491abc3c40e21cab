"""What can go wrong in a training run.

DovetailError
└── TrainingError         a training run cannot start or go on
"""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import DovetailError


class TrainingError(DovetailError):
    """A training run cannot start or go on."""


def cannot_write(path: Path, error: Exception) -> TrainingError:
    """Return what the operating system said about a file or folder, with the way out."""
    what = (error.filename or path) if isinstance(error, OSError) else path
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return TrainingError(
        f"{what} cannot be written: {why}",
        hint="free some space, or give a folder on a disk that can be written",
    )
