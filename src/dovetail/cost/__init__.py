"""What a plan costs: pure functions, written as formulas."""

from dovetail.cost.plan import Evaluation, StageTimes, evaluate, stage_times

__all__ = ["Evaluation", "StageTimes", "evaluate", "stage_times"]
