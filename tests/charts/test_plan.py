"""The picture of a plan, against times worked out by hand."""

import itertools
from pathlib import Path

import msgspec
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from dovetail.charts import draw_plan, plan_facts, save_figure
from dovetail.charts.plan import optimality
from dovetail.charts.style import type_colour
from dovetail.cost import evaluate
from dovetail.errors import PlanError
from dovetail.spec import Layer, LayerTime, Link, Plan, Problem, ResourceType, Stage, Training


def make_problem(min_samples_per_s: float = 16.0) -> Problem:
    """Return three layers: `read` and `look-up` for the cpu, `learn` for the gpu, and a slow link between."""
    return Problem(
        training=Training(samples=72_000, batch=100, min_samples_per_s=min_samples_per_s),
        resources=(
            ResourceType(name="cpu", price_per_hour=0.25),
            ResourceType(name="tpu", price_per_hour=3.0),
            ResourceType(name="gpu", price_per_hour=2.0),
        ),
        layers=(
            Layer(name="read", on={"cpu": LayerTime(compute_s=4, comm_s=1, compute_parallel=1, comm_parallel=0)}),
            Layer(
                name="look-up",
                on={"cpu": LayerTime(compute_s=2, comm_s=1, compute_parallel=1, comm_parallel=0)},
                output_bytes=1e9,
            ),
            Layer(name="learn", on={"gpu": LayerTime(compute_s=8, comm_s=0.8, compute_parallel=0.5, comm_parallel=1)}),
        ),
        links=(Link(source="cpu", target="gpu", bytes_per_s=1e9, latency_s=0.25),),
    )


def make_plan(problem: Problem, *stages: tuple[str, int, int, int], **keys: object) -> Plan:
    """Return the plan of stages given as (type, first layer, last layer, units)."""
    made = tuple(Stage(resource=t, first_layer=first, last_layer=last, units=units) for t, first, last, units in stages)
    worth = evaluate(problem, made, split_stages=True)
    plan = Plan(
        method="exact",
        stages=made,
        samples_per_s=worth.samples_per_s,
        cost_per_hour=worth.cost_per_hour,
        cost=worth.cost,
        lower_bound=worth.cost,
        optimal=True,
        seconds=0.012,
        hours=worth.hours,
    )
    return msgspec.structs.replace(plan, **keys)


TWO_STAGES = (("cpu", 0, 1, 2), ("gpu", 2, 2, 4))


def many_stages(num_layers: int, num_stages: int, num_types: int) -> tuple[Problem, Plan]:
    """Return a chain whose stages are of very different lengths, on types taken in turn."""
    types = [f"type-{position}" for position in range(num_types)]
    time = LayerTime(compute_s=0.004, comm_s=0.002, compute_parallel=0.9, comm_parallel=0.9)
    problem = Problem(
        training=Training(samples=10**6, batch=512, min_samples_per_s=5_000),
        resources=tuple(ResourceType(name=name, price_per_hour=1.5) for name in types),
        layers=tuple(Layer(name=f"block{i}.attention", on=dict.fromkeys(types, time)) for i in range(num_layers)),
    )
    ends = sorted({*range(num_stages - 1), num_layers - 1})
    starts = [0, *(end + 1 for end in ends[:-1])]
    stages = [
        (types[i % num_types], first, last, 3 + i) for i, (first, last) in enumerate(zip(starts, ends, strict=True))
    ]
    return problem, make_plan(problem, *stages)


def bar(figure: Figure, name: str) -> Rectangle:
    """Return the bar of that name."""
    return next(patch for axes in figure.axes for patch in axes.patches if patch.get_gid() == name)


def words(figure: Figure) -> list[str]:
    """Return every text on a figure."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_bars_are_as_high_as_the_stages_take():
    problem = make_problem()
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    # cpu on 2 units: (4 + 2) / 2 compute; 1 + 1 communication that nothing shares; cut 2 (1 GB / 1 GB/s / 2 + 0.25 s).
    assert bar(figure, "compute-1").get_height() == pytest.approx(3.0)
    assert bar(figure, "communication-1").get_height() == pytest.approx(2.0)
    assert bar(figure, "cuts-1").get_height() == pytest.approx(1.5)
    assert bar(figure, "cuts-1").get_y() == pytest.approx(2.0)
    assert bar(figure, "stage-1").get_height() == pytest.approx(3.5)
    # gpu on 4 units: 8 (0.5 + 0.5 / 4) compute; 0.8 / 4 communication; cut 2 (1 / 4 + 0.25).
    assert bar(figure, "compute-2").get_height() == pytest.approx(5.0)
    assert bar(figure, "communication-2").get_height() == pytest.approx(0.2)
    assert bar(figure, "cuts-2").get_height() == pytest.approx(1.0)
    assert bar(figure, "stage-2").get_height() == pytest.approx(5.0)


def test_bars_agree_with_the_evaluator():
    problem, plan = many_stages(num_layers=40, num_stages=9, num_types=4)
    figure = draw_plan(problem, plan)

    heights = [bar(figure, f"stage-{number}").get_height() for number in range(1, 10)]
    assert heights == pytest.approx(list(evaluate(problem, plan.stages).stage_seconds))


def test_the_bottleneck_is_outlined_and_named():
    problem = make_problem()
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    outline, stage = bar(figure, "bottleneck"), bar(figure, "stage-2")
    assert outline.get_bbox().bounds == pytest.approx(stage.get_bbox().bounds)
    assert "bottleneck 5 s" in words(figure)


def test_the_floor_is_a_dashed_line_at_the_time_it_allows():
    problem = make_problem(min_samples_per_s=16)
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    line = next(line for line in figure.findobj(Line2D) if line.get_gid() == "floor")
    assert list(line.get_ydata()) == [6.25, 6.25]  # 100 samples at 16 a second
    assert "floor of 16 samples/s: at most 6.25 s" in words(figure)


def test_a_floor_that_would_flatten_the_bars_is_a_note():
    problem = make_problem(min_samples_per_s=1)
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    assert not [line for line in figure.findobj(Line2D) if line.get_gid() == "floor"]
    assert "floor of 1 samples/s: at most 100 s, far above this scale" in words(figure)


def test_without_a_floor_there_is_neither_line_nor_note():
    problem = make_problem(min_samples_per_s=0)
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    assert not any("floor" in text for text in words(figure))


def test_each_layer_is_a_cell_in_the_colour_of_its_type():
    problem = make_problem()
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    cells = next(cells for cells in figure.findobj(PolyCollection) if cells.get_gid() == "layers")
    assert [to_hex(colour) for colour in cells.get_facecolor()] == [type_colour(0), type_colour(0), type_colour(2)]
    assert {"read", "look-up", "learn"} <= set(words(figure))


def test_a_plan_says_what_it_comes_to():
    problem = make_problem()
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    # 100 samples in 5 s; 2 x 0.25 + 4 x 2 USD/h; 72 000 samples at 20 a second are an hour.
    assert figure.get_suptitle() == "20 samples/s  ·  $8.50/h  ·  $8.50 in 60 min  ·  proven optimal"
    assert "3 layers in 2 stages on 2 types, planned by exact in 12 ms" in words(figure)


def test_the_legend_gives_units_and_price_of_each_type_in_use():
    problem = make_problem()
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    assert {"cpu", "2", "$0.25/h", "gpu", "4", "$2.00/h", "1 more not used"} <= set(words(figure))
    assert "tpu" not in words(figure)


def test_the_svg_has_the_stages_as_words(tmp_path: Path):
    problem = make_problem()
    save_figure(draw_plan(problem, make_plan(problem, *TWO_STAGES)), tmp_path / "plan.svg")

    svg = (tmp_path / "plan.svg").read_text()
    for label in ("cpu x 2", "gpu x 4", "bottleneck 5 s", "proven optimal", "compute", "cuts between stages"):
        assert label in svg


@pytest.mark.parametrize(
    ("cost", "lower_bound", "optimal", "said"),
    [
        (100.0, 100.0, True, "proven optimal"),
        (105.0, 100.0, False, "within 5% of the optimum"),
        (103.21, 100.0, False, "within 3.3% of the optimum"),  # rounded up: 3.2% would not be true
        (100.0123, 100.0, False, "within 0.013% of the optimum"),
        (100.0, 0.0, False, "no bound proven"),
    ],
)
def test_the_gap_is_never_made_smaller_than_it_is(cost: float, lower_bound: float, optimal: bool, said: str):
    plan = make_plan(make_problem(), *TWO_STAGES, cost=cost, lower_bound=lower_bound, optimal=optimal)

    assert optimality(plan) == said


def test_a_missed_demand_is_said():
    problem = make_problem(min_samples_per_s=25)
    figure = draw_plan(problem, make_plan(problem, *TWO_STAGES))

    assert "misses a demand: 20 samples/s is below min_samples_per_s = 25" in words(figure)


def test_a_plan_for_another_problem_is_refused():
    problem = make_problem()
    plan = make_plan(problem, *TWO_STAGES)

    with pytest.raises(PlanError):
        draw_plan(problem, msgspec.structs.replace(plan, stages=plan.stages[:1]))


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "num_types"), [(5, 2, 2), (16, 6, 4), (300, 30, 16), (90, 70, 64), (1, 1, 1)]
)
def test_no_words_leave_the_page_at_any_size(num_layers: int, num_stages: int, num_types: int):
    figure = draw_plan(*many_stages(num_layers, num_stages, num_types))

    page = figure.bbox
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert page.x0 <= box.x0, text
            assert box.x1 <= page.x1, text
            assert page.y0 <= box.y0, text
            assert box.y1 <= page.y1, text


def test_thirty_stages_all_have_a_label_and_no_two_badges_touch():
    problem, plan = many_stages(num_layers=300, num_stages=30, num_types=16)
    figure = draw_plan(problem, plan)

    strip = figure.axes[0]
    for stage in plan.stages:
        assert f"{stage.resource} x {stage.units}" in words(figure)
    badges = sorted(
        line.get_window_extent().x0 for line in strip.lines if line.get_marker() == "o" and line.get_markersize() > 10
    )
    assert len(badges) == 30
    assert min(right - left for left, right in itertools.pairwise(badges)) >= 0.21 * figure.dpi


def test_many_layers_are_named_only_as_often_as_there_is_room():
    figure = draw_plan(*many_stages(num_layers=300, num_stages=30, num_types=16))

    named = [text for text in figure.axes[0].texts if text.get_text().startswith("block")]
    starts = sorted(text.get_transform().transform(text.get_position())[0] for text in named)
    assert 20 <= len(named) <= 45
    assert min(right - left for left, right in itertools.pairwise(starts)) >= 0.25 * figure.dpi


def test_names_with_signs_of_their_own_are_shown_as_they_are(tmp_path: Path):
    time = LayerTime(compute_s=1, comm_s=1, compute_parallel=1, comm_parallel=1)
    problem = Problem(
        training=Training(samples=10, batch=1),
        resources=(ResourceType(name="_$1 & $2", price_per_hour=1),),
        layers=(Layer(name="$x_1$ <b>", on={"_$1 & $2": time}),),
    )

    save_figure(draw_plan(problem, make_plan(problem, ("_$1 & $2", 0, 0, 3))), tmp_path / "plan.svg")

    svg = (tmp_path / "plan.svg").read_text()
    assert ">_$1 &amp; $2 x 3</text>" in svg
    assert ">$x_1$ &lt;b&gt;</text>" in svg


def test_the_facts_are_one_row_a_stage():
    problem = make_problem()

    table = plan_facts(problem, make_plan(problem, *TWO_STAGES))

    assert table.rows == (
        ("1", "read to look-up", "cpu", "2", "3 s", "2 s", "1.5 s", "3.5 s", "$0.5"),
        ("2 (bottleneck)", "learn", "gpu", "4", "5 s", "200 ms", "1 s", "5 s", "$8.00"),
    )
