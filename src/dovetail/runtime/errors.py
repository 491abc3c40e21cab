"""What can go wrong in a training run.

DovetailError
└── TrainingError         a training run cannot start or go on
"""

from __future__ import annotations

from dovetail.errors import DovetailError


class TrainingError(DovetailError):
    """A training run cannot start or go on."""
