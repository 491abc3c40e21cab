"""The picture of a planner that learns."""

import math

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from dovetail.charts import draw_learning, learning_facts
from dovetail.errors import DovetailError

ROUNDS = [1, 2, 3, 4]
MEANS = [40.0, math.inf, 26.0, 24.0]
BESTS = [30.0, 30.0, 22.0, 22.0]


def line(figure: Figure, name: str) -> Line2D:
    return next(line for line in figure.findobj(Line2D) if line.get_gid() == name)


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_both_costs_are_drawn_by_round():
    figure = draw_learning(ROUNDS, MEANS, BESTS, 20.0, "Learning")

    assert list(line(figure, "best").get_xdata()) == ROUNDS
    assert list(line(figure, "best").get_ydata()) == BESTS
    assert list(line(figure, "mean").get_ydata()) == pytest.approx([40.0, math.nan, 26.0, 24.0], nan_ok=True)


def test_the_lower_bound_is_a_line_and_the_ends_say_how_far_they_are_from_it():
    figure = draw_learning(ROUNDS, MEANS, BESTS, 20.0, "Learning")

    assert list(line(figure, "lower bound").get_ydata()) == [20.0, 20.0]
    assert "round mean\n$24.00 (1.2x)" in words(figure)
    assert "best so far\n$22.00 (1.1x)" in words(figure)
    assert "lower bound\n$20.00" in words(figure)
    assert "optimum" not in words(figure)


def test_a_lower_bound_is_called_the_optimum_only_where_a_plan_reaches_it():
    reached = draw_learning(ROUNDS, MEANS, BESTS, 22.0 * (1 - 5e-7), "Learning")
    missed = draw_learning(ROUNDS, MEANS, BESTS, 22.0 * (1 - 5e-6), "Learning")

    assert "optimum\n$22.00" in words(reached)
    assert "1x the optimum of $22.00" in words(reached)
    assert "optimum" not in words(missed)
    assert learning_facts(ROUNDS, MEANS, BESTS, 22.0).caption == "Cost by round; the optimum is $22.00"
    assert learning_facts(ROUNDS, MEANS, BESTS, 20.0).caption == "Cost by round; the lower bound is $20.00"


def test_measured_rounds_are_marked_and_their_best_is_the_outcome():
    # The model promised 22; measured, nothing is below 28.
    figure = draw_learning([1, 2, 3, 4], [40.0, 30.0, 33.0, 30.0], [30.0, 22.0, 31.0, 28.0], None, "L", measured_from=3)

    assert list(line(figure, "measured").get_xdata()) == [3, 3]
    assert "best plan $28.00, found in round 4 of 4" in words(figure)
    facts = learning_facts(ROUNDS, MEANS, BESTS, None, measured_from=3)
    assert facts.caption == "Cost by round, measured from round 3 on"


def test_measured_rounds_without_any_plan_say_so():
    figure = draw_learning([1, 2], [30.0, math.inf], [22.0, math.inf], None, "Learning", measured_from=2)

    assert "no plan that meets the demands" in words(figure)


def test_the_subtitle_says_when_the_best_plan_was_found():
    figure = draw_learning(ROUNDS, MEANS, BESTS, 20.0, "Learning")

    assert figure.get_suptitle() == "Learning"
    assert "best plan $22.00, found in round 3 of 4, 1.1x the lower bound of $20.00" in words(figure)


def test_an_unknown_bound_is_left_out():
    figure = draw_learning(ROUNDS, MEANS, BESTS, None, "Learning")

    assert "bound" not in words(figure)
    assert "best so far\n$22.00" in words(figure)


def test_end_labels_that_meet_move_apart():
    figure = draw_learning(ROUNDS, [20.0] * 4, [20.0] * 4, 20.0, "Learning")

    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
    assert len(boxes) == 3
    for position, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[:position])


def test_a_cost_that_falls_over_tenfold_takes_a_log_scale():
    assert draw_learning([1, 2], [400.0, 30.0], [300.0, 30.0], 20.0, "Learning").axes[0].get_yscale() == "log"
    assert draw_learning([1, 2], [190.0, 30.0], [180.0, 30.0], 20.0, "Learning").axes[0].get_yscale() == "linear"


def test_rounds_without_any_plan_say_so():
    figure = draw_learning([1, 2], [math.inf] * 2, [math.inf] * 2, None, "Learning")

    assert "no plan that meets the demands in 2 rounds" in words(figure)


def test_one_round_is_a_point():
    assert line(draw_learning([1], [30.0], [25.0], None, "Learning"), "best").get_marker() == "o"


@pytest.mark.parametrize(("rounds", "means", "bests"), [([], [], []), ([1, 2], [3.0], [3.0, 2.0])])
def test_rounds_and_costs_that_do_not_match_are_refused(rounds: list[int], means: list[float], bests: list[float]):
    with pytest.raises(DovetailError) as refusal:
        draw_learning(rounds, means, bests, None, "Learning")

    assert refusal.value.hint


def test_the_facts_have_the_last_round_and_at_most_forty():
    rounds = list(range(1, 202))

    table = learning_facts(rounds, [30.0] * 201, [25.0] * 201, 20.0)

    assert len(table.rows) <= 40
    assert table.rows[-1] == ("201", "$30.00 (1.5x)", "$25.00 (1.25x)")


def test_a_round_without_a_plan_says_so_in_the_facts():
    assert learning_facts(ROUNDS, MEANS, BESTS, None).rows[1] == ("2", "no plan", "$30.00")
