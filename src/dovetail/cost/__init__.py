"""What a plan costs: pure functions, written as formulas."""

from dovetail.cost.measured import bare_problem, measured_problem, measured_stage, modelled_seconds
from dovetail.cost.memory import StageMemory, plan_memory, stage_memory
from dovetail.cost.plan import PlanEvaluation, evaluate, evaluate_plan, stage_times
from dovetail.cost.stage import StageTimes

__all__ = [
    "PlanEvaluation",
    "StageMemory",
    "StageTimes",
    "bare_problem",
    "evaluate",
    "evaluate_plan",
    "measured_problem",
    "measured_stage",
    "modelled_seconds",
    "plan_memory",
    "stage_memory",
    "stage_times",
]
