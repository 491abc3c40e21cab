"""What a plan costs: pure functions, written as formulas."""

from dovetail.cost.plan import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
