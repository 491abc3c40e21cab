"""What can go wrong with a model: one kind of mistake, a model or a choice for it that does not work."""

from __future__ import annotations

from dovetail.errors import DovetailError


class ModelError(DovetailError):
    """A model that cannot be found, built or divided into layers, or a loss, metric or optimizer that does not fit."""
