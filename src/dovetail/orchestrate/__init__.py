"""From a model to a result: measured, planned, trained as planned, planned again where that pays, and compared.

The command line's `run`, `profile`, `plan --measured`, `train --replan` and `link measure --on` are these functions.
Every name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.orchestrate.hosts import measure_between, profiled_on
    from dovetail.orchestrate.pipeline import RunComparison, run
    from dovetail.orchestrate.profiling import profiled_here
    from dovetail.orchestrate.replanning import PlannedResult, ReplanRule, train_planned

__all__ = [
    "PlannedResult",
    "ReplanRule",
    "RunComparison",
    "measure_between",
    "profiled_here",
    "profiled_on",
    "run",
    "train_planned",
]

__getattr__, __dir__ = on_demand(__name__)
