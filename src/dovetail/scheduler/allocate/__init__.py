"""The best allocation of all: one option a job at most, within the workers of each type, the sum of values greatest."""

from dovetail.scheduler.allocate.best import JobOptions, best_choice

__all__ = ["JobOptions", "best_choice"]
