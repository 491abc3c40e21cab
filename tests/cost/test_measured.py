"""What a run measured, as a problem."""

from __future__ import annotations

import pytest

from dovetail.cost import bare_problem, evaluate, measured_problem, measured_stage
from dovetail.spec import Plan, Stage, Training
from tests.makers import make_layer, make_layer_time, make_link, make_problem, make_resource, make_stages


def make_took(stage: Stage, busy_s: float, *, batch: int, samples: int = 1000) -> Stage:
    return measured_stage(stage, batch=batch, workers=stage.units, samples=samples, busy_s=busy_s)


def test_the_model_says_of_a_measured_stage_what_was_measured():
    times = [
        make_layer_time(seconds, compute_parallel=share) for seconds, share in ((1.0, 1.0), (3.0, 0.5), (2.0, 0.9))
    ]
    layers = [make_layer(str(number), on={"cpu": time, "gpu": time}) for number, time in enumerate(times)]
    problem = make_problem(layers=layers, links=[make_link()], batch=100)
    stages = make_stages(("cpu", 0, 1, 4), ("gpu", 2, 2, 1))

    # 12 s over 4 workers for 1000 samples: a batch of 100 takes 0.3 s.
    found = measured_problem(problem, [make_took(stages[0], 12.0, batch=100), make_took(stages[1], 5.0, batch=100)])

    assert evaluate(found, stages).stage_seconds == pytest.approx((0.3, 0.5))
    first, second, third = found.layers
    assert second.on["cpu"].compute_s == pytest.approx(3 * first.on["cpu"].compute_s)
    assert third.on["gpu"].compute_s == pytest.approx(0.5)
    assert third.on["gpu"].source == "measured"
    assert first.on["gpu"] == layers[0].on["gpu"]  # it did not run there
    assert found.links == problem.links


def test_layers_of_a_stage_of_which_nothing_was_known_are_alike():
    nothing = make_layer_time(0.0, compute_parallel=0.5)
    layers = [make_layer(name, on={"cpu": nothing}) for name in "ab"]
    problem = make_problem(layers=layers, resources=[make_resource("cpu")], batch=10)
    stages = make_stages(("cpu", 0, 1, 2))

    found = measured_problem(problem, [make_took(stages[0], 6.0, samples=10, batch=10)])

    assert evaluate(found, stages).stage_seconds == pytest.approx((3.0,))
    assert found.layers[0].on == found.layers[1].on


def test_what_was_not_measured_stays():
    problem = make_problem()
    stages = make_stages(("cpu", 0, 1, 1))

    assert measured_problem(problem, [make_took(stages[0], 0.0, samples=0, batch=10)]) == problem


def test_a_plan_alone_makes_a_problem_that_says_the_same():
    plan = Plan(
        method="exact",
        stages=(
            Stage(resource="cpu", first_layer=0, last_layer=1, units=3, seconds_per_batch=0.5, layers=("a", "b")),
            Stage(resource="gpu", first_layer=2, last_layer=2, units=1, seconds_per_batch=0.25),
        ),
        samples_per_s=200.0, cost_per_hour=1.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=100,
    )  # fmt: skip

    problem = bare_problem(plan, [make_resource("cpu"), make_resource("gpu")], Training(samples=1000, batch=100))

    assert evaluate(problem, plan.stages).stage_seconds == pytest.approx((0.5, 0.25))
    assert [layer.name for layer in problem.layers] == ["a", "b", "layer-2"]
