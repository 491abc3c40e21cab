"""What a user asks of a plan, beside what the problem file says."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """A price cap, the shape a plan may have, and how long planning may take. The floor stands in the problem."""

    max_cost_per_hour: float | None = None
    max_stages: int | None = None
    split_stages: bool = False
    time_limit_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse a cap that is no amount of money."""
        if self.max_cost_per_hour is not None and not self.max_cost_per_hour > 0:
            raise SpecError(
                f"is {self.max_cost_per_hour}, expected a number above zero",
                key="max_cost_per_hour",
                hint="it is in USD per hour for all units together, e.g. 20",
            )
