"""What a device tier has found and moved, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Counts since the table was made, distinct rows of a batch each; `a - b` is what happened in between."""

    num_batches: int
    num_rounds: int
    """How often batches were planned; several at once count once."""
    num_looked_up: int
    num_missing: int
    """Rows that were not on the device when their batch was planned."""
    num_lifted: int
    """Rows that came up from below; the others that were missing were new."""
    num_from_disk: int
    num_lowered: int
    planning_s: float
    planning_waited_s: float
    """How much of it was spent waiting for the device."""
    moving_s: float
    moving_waited_s: float

    @property
    def hit_ratio(self) -> float:
        """Return the part of distinct rows that were on the device."""
        return 1 - self.num_missing / self.num_looked_up if self.num_looked_up else 0.0

    def __sub__(self, other: Moved) -> Moved:
        return Moved(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})
