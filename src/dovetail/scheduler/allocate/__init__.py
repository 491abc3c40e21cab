"""The best allocation of all: one option a job at most, within the workers of each type, the sum of values greatest."""

from dovetail.scheduler.allocate.best import best_choice
from dovetail.scheduler.allocate.options import Options

__all__ = ["Options", "best_choice"]
