"""What can go wrong with keys and encrypted files; a file that is damaged is a `ValueError`, as elsewhere."""

from __future__ import annotations

from dovetail.errors import DovetailError


class EncryptionError(DovetailError):
    """A key is missing, wrong or readable by others, or a file is not encrypted that should be."""
