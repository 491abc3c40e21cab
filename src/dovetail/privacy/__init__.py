"""Promises about single samples: what they cost, the draws they hang on, and what a private step owes.

The package may be called, as the command is: `dovetail.privacy(samples=1_000_000, batch=1_000, epsilon=3, delta=1e-7)`.
A function of that name beside it would be gone as soon as anything here is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.privacy.accountant import SpentSteps, epsilon_of, noise_for, steps_within
    from dovetail.privacy.planning import PrivacyBudget, budget
    from dovetail.privacy.steps import PrivateSteps

__all__ = ["PrivacyBudget", "PrivateSteps", "SpentSteps", "budget", "epsilon_of", "noise_for", "steps_within"]

__getattr__, __dir__ = on_demand(__name__)


class _PrivacyModule(ModuleType):
    """A module that is called like a function in it."""

    def __call__(self, **what: Any) -> Any:
        """Return what private training comes to; see `budget`."""
        return self.budget(**what)


sys.modules[__name__].__class__ = _PrivacyModule
