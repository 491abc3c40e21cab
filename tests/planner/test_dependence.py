"""How far a plan depends on times that were estimated."""

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.planner.demands import Demands
from dovetail.planner.dependence import dependence
from dovetail.planner.plan import cheapest_plan
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Training


def problem_of(seconds_on_fast, *, error=1.0, source="estimated"):
    """Return one layer: 1 s on a type of 1 USD an hour, and an estimate on another of 3 USD."""

    def spent(seconds, **how):
        return LayerTime(compute_s=seconds, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0, **how)

    return Problem(
        training=Training(samples=3600, epochs=1, batch=1, min_samples_per_s=0.0),
        resources=(
            ResourceType(name="slow", price_per_hour=1.0, kind="cpu"),
            ResourceType(name="fast", price_per_hour=3.0, kind="gpu"),
        ),
        layers=(
            Layer(
                name="fc",
                on={"slow": spent(1.0, source="measured"), "fast": spent(seconds_on_fast, source=source, error=error)},
            ),
        ),
    )


def test_a_plan_that_an_error_would_overturn_is_told():
    # 3,600 batches: an hour at 1 USD, or 0.25 h at 3 USD = 0.75. Twice as slow, the fast type would cost 1.50, and the
    # slow one at 1 USD wins; twice as fast, 0.375.
    problem = problem_of(0.25)
    plan = cheapest_plan(problem, Demands(), clock=lambda: 0.0)

    found = dependence(problem, plan, Demands(), clock=lambda: 0.0)

    assert plan.cost == pytest.approx(0.75)
    assert found.types == ("fast",)
    assert found.cost_if_slower == pytest.approx(1.0)
    assert found.cost_if_faster == pytest.approx(0.375)
    assert found.changes


def test_a_plan_that_stays_the_same_is_told_so():
    problem = problem_of(0.1)
    plan = cheapest_plan(problem, Demands(), clock=lambda: 0.0)

    found = dependence(problem, plan, Demands(), clock=lambda: 0.0)

    assert (found.cost_if_slower, found.cost_if_faster) == (pytest.approx(0.6), pytest.approx(0.15))
    assert not found.changes


def test_measured_times_leave_nothing_to_say():
    problem = problem_of(0.25, source="measured", error=0.1)

    assert (
        dependence(problem, cheapest_plan(problem, Demands(), clock=lambda: 0.0), Demands(), clock=lambda: 0.0) is None
    )


def test_plan_says_how_far_its_answer_depends_on_estimates(tmp_path):
    (tmp_path / "problem.json").write_bytes(msgspec.json.encode(problem_of(0.25)))

    said = CliRunner().invoke(app, ["plan", str(tmp_path / "problem.json")])

    assert said.exit_code == 0, said.output
    assert "estimated, not measured: fast. Were all of that 2 times as slow" in said.stdout
    assert "Layers would then run elsewhere" in said.stdout
