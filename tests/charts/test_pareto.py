"""The picture of what speed costs."""

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text

from dovetail.charts import draw_pareto, pareto_facts
from dovetail.charts.pareto import frontier, units_per_type
from dovetail.errors import DovetailError
from dovetail.spec import Plan, Stage


def make_plan(samples_per_s: float, cost: float, units: tuple[tuple[str, int], ...] = (("cpu", 4), ("gpu", 2))) -> Plan:
    stages = tuple(
        Stage(resource=name, first_layer=at, last_layer=at, units=count) for at, (name, count) in enumerate(units)
    )
    return Plan(
        method="exact",
        stages=stages,
        samples_per_s=samples_per_s,
        cost_per_hour=3.0,
        cost=cost,
        lower_bound=cost,
        optimal=True,
        seconds=0.1,
        hours=cost / 3.0,
    )


SLOW, MIDDLE, FAST = make_plan(1e3, 10.0), make_plan(5e3, 20.0), make_plan(2e4, 60.0, (("gpu", 9),))
BEATEN = make_plan(4e3, 30.0)


def line(figure: Figure, name: str) -> Line2D:
    return next(line for line in figure.findobj(Line2D) if line.get_gid() == name)


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_the_line_goes_through_the_plans_that_none_beats():
    figure = draw_pareto([FAST, BEATEN, SLOW, MIDDLE])

    drawn = line(figure, "frontier")
    assert list(drawn.get_xdata()) == [1e3, 5e3, 2e4]
    assert list(drawn.get_ydata()) == [10.0, 20.0, 60.0]
    assert "1 beaten by others (hollow)" in words(figure)


def test_a_speed_between_two_plans_costs_what_the_faster_costs():
    assert line(draw_pareto([SLOW, FAST]), "frontier").get_drawstyle() == "steps-pre"


def test_speed_is_on_a_log_scale():
    assert draw_pareto([SLOW, FAST]).axes[0].get_xscale() == "log"


def test_the_cheapest_and_the_fastest_are_marked():
    figure = draw_pareto([SLOW, MIDDLE, FAST])

    assert (line(figure, "cheapest").get_xdata()[0], line(figure, "cheapest").get_ydata()[0]) == (1e3, 10.0)
    assert (line(figure, "fastest").get_xdata()[0], line(figure, "fastest").get_ydata()[0]) == (2e4, 60.0)
    assert "cheapest: $10.00\n4 cpu + 2 gpu" in words(figure)
    assert "fastest: $60.00\n9 gpu" in words(figure)


def test_one_plan_is_both():
    assert "cheapest and fastest: $10.00" in words(draw_pareto([SLOW]))


def test_labels_of_many_plans_do_not_overlap():
    figure = draw_pareto([make_plan(1e3 * 1.07**i, 10 * 1.08**i) for i in range(60)])

    boxes = [label.get_window_extent() for label in figure.findobj(Annotation)]
    assert 3 <= len(boxes) <= 12
    for position, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[:position])


def test_no_plan_beats_another_of_the_same_speed_and_a_higher_cost():
    assert frontier([make_plan(5e3, 25.0), MIDDLE]) == [MIDDLE]


def test_units_of_a_type_add_up_over_stages():
    assert units_per_type(make_plan(1, 1, (("cpu", 4), ("gpu", 2), ("cpu", 3)))) == "7 cpu + 2 gpu"


def test_types_beyond_the_third_are_counted():
    plan = make_plan(1, 1, (("a", 5), ("b", 4), ("c", 3), ("d", 2), ("e", 1)))

    assert units_per_type(plan) == "5 a + 4 b + 3 c + 2 more types"


@pytest.mark.parametrize("plans", [[], [make_plan(float("inf"), 1.0)]])
def test_nothing_to_draw_is_refused_with_a_hint(plans: list[Plan]):
    with pytest.raises(DovetailError) as refusal:
        draw_pareto(plans)

    assert refusal.value.hint


def test_the_facts_are_one_row_a_plan_from_the_slowest():
    rows = pareto_facts([FAST, BEATEN, SLOW]).rows

    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("1 k", "$10.00", "yes"),
        ("4 k", "$30.00", "yes"),
        ("20 k", "$60.00", "yes"),
    ]
    assert pareto_facts([BEATEN, MIDDLE]).rows[0][-1] == "no"
