"""The scheduler's policies in virtual time."""

from dovetail.simulator.engine import simulate
from dovetail.simulator.metrics import JobOutcome, Outcome

__all__ = ["JobOutcome", "Outcome", "simulate"]
