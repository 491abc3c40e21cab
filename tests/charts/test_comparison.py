"""The picture of methods side by side."""

from pathlib import Path

import pytest
from matplotlib.lines import Line2D

from dovetail.charts import comparison_facts, draw_comparison, save_figure
from dovetail.charts.comparison import format_ratio
from dovetail.errors import DovetailError
from dovetail.spec import Plan


def make_plan(method: str, cost: float, seconds: float = 0.5) -> Plan:
    return Plan(
        method=method,
        stages=(),
        samples_per_s=1.0,
        cost_per_hour=1.0,
        cost=cost,
        lower_bound=50.0,
        optimal=cost == 50.0,
        seconds=seconds,
    )


PLANS = [make_plan("greedy", 75.0, 0.002), make_plan("exact", 50.0, 0.25), make_plan("genetic", 60.0, 90.0)]


def test_bars_are_sorted_by_cost_and_as_long_as_the_ratio():
    axes = draw_comparison(PLANS, 50.0).axes[0]

    assert [label.get_text() for label in axes.get_yticklabels()] == ["exact", "genetic", "greedy"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.0, 1.2, 1.5])
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is on top


def test_a_line_stands_at_the_optimum():
    figure = draw_comparison(PLANS, 50.0)

    line = next(line for line in figure.findobj(Line2D) if line.get_gid() == "optimum")
    assert list(line.get_xdata()) == [1.0, 1.0]


def test_every_method_has_its_ratio_cost_and_time(tmp_path: Path):
    save_figure(draw_comparison(PLANS, 50.0), tmp_path / "methods.svg")

    svg = (tmp_path / "methods.svg").read_text()
    for cell in ("1x", "1.2x", "1.5x", "$50.00", "$60.00", "$75.00", "250 ms", "90 s", "2 ms"):
        assert f">{cell}</text>" in svg
    assert "1 of 3 methods finds the optimum" in svg


@pytest.mark.parametrize(("dearest", "scale"), [(499.0, "linear"), (501.0, "log")])
def test_a_spread_over_tenfold_takes_a_log_scale(dearest: float, scale: str):
    axes = draw_comparison([*PLANS, make_plan("alone", dearest)], 50.0).axes[0]

    assert axes.get_xscale() == scale
    bar = axes.patches[-1]
    assert bar.get_x() + bar.get_width() == pytest.approx(dearest / 50.0)


def test_methods_of_one_cost_stand_in_order_of_planning_time():
    axes = draw_comparison([make_plan("slow", 50.0, 9.0), make_plan("quick", 50.0, 1.0)], 50.0).axes[0]

    assert [label.get_text() for label in axes.get_yticklabels()] == ["quick", "slow"]


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, "1x"), (1 + 1e-9, "1x"), (1.00004, "1.00004x"), (1.0341, "1.034x"), (12.54, "12.5x"), (4321.0, "4,321x")],
)
def test_only_what_is_optimal_reads_as_one(ratio: float, said: str):
    assert format_ratio(ratio) == said


@pytest.mark.parametrize(
    ("plans", "optimum"), [([], 50.0), (PLANS, 0.0), (PLANS, float("inf")), ([make_plan("none", float("inf"))], 50.0)]
)
def test_what_cannot_be_compared_is_refused_with_a_hint(plans: list[Plan], optimum: float):
    with pytest.raises(DovetailError) as refusal:
        draw_comparison(plans, optimum)

    assert refusal.value.hint


def test_the_facts_are_one_row_a_method():
    assert comparison_facts(PLANS, 50.0).rows == (
        ("exact", "1x", "$50.00", "250 ms"),
        ("genetic", "1.2x", "$60.00", "90 s"),
        ("greedy", "1.5x", "$75.00", "2 ms"),
    )
