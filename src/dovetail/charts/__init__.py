"""Pictures of plans: each function returns a matplotlib Figure, and `save_figure` writes it to a file."""

from dovetail.charts.comparison import comparison_facts, draw_comparison
from dovetail.charts.figure import check_chart_path, save_figure
from dovetail.charts.learning import draw_learning, learning_facts
from dovetail.charts.page import FactTable
from dovetail.charts.pareto import draw_pareto, pareto_facts
from dovetail.charts.plan import draw_plan, plan_facts

__all__ = [
    "FactTable",
    "check_chart_path",
    "comparison_facts",
    "draw_comparison",
    "draw_learning",
    "draw_pareto",
    "draw_plan",
    "learning_facts",
    "pareto_facts",
    "plan_facts",
    "save_figure",
]
