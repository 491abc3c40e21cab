"""What can go wrong with training data.

DovetailError
└── DataError               data that cannot be found, opened or understood
    └── BadRowsError        more broken rows than were allowed
"""

from __future__ import annotations

from dovetail.errors import DovetailError


class DataError(DovetailError):
    """Data that cannot be found, opened or understood."""


class BadRowsError(DataError):
    """More broken rows than were allowed."""


class DataWarning(UserWarning):
    """Data that can be read, but look as if they were meant otherwise."""
