"""What a user asks of a plan, beside what the problem file says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """A price cap, the shape a plan may have, and how long planning may take. The floor stands in the problem."""

    max_cost_per_hour: float | None = None
    max_stages: int | None = None
    split_stages: bool = False
    time_limit_s: float = 30.0
