"""What a unit holds, by hand."""

import pytest

from dovetail.cost import evaluate, stage_memory
from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Stage, Training

TIME = LayerTime(compute_s=1.0, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)
ROWS = Layer(
    name="rows",
    kind="embedding",
    on={"a": TIME},
    weight_bytes=1000,
    optimizer_bytes=2000,
    index_bytes=500,
    output_bytes=40,
)
DENSE = Layer(
    name="fc", kind="fc", on={"a": TIME}, weight_bytes=100, optimizer_bytes=200, output_bytes=8, activation_bytes=60
)


def test_dense_layers_are_held_whole_by_every_unit_and_rows_and_batches_are_shared() -> None:
    memory = stage_memory([ROWS, DENSE], units=4)

    assert memory.parameter_bytes == 1000 / 4 + 100
    assert memory.gradient_bytes == 100  # rows have gradients only for the batch
    assert memory.optimizer_bytes == 2000 / 4 + 200
    assert memory.index_bytes == 500 / 4
    assert memory.activation_bytes == (40 + 60) / 4
    assert memory.total_bytes == 250 + 100 + 100 + 500 + 200 + 125 + 25


def test_a_plan_that_does_not_fit_is_a_violation() -> None:
    problem = Problem(
        training=Training(samples=1, batch=1),
        resources=(ResourceType(name="a", price_per_hour=1.0, memory_bytes=1000),),
        layers=(ROWS, DENSE),
    )
    # fixed 100 + 100 + 200 = 400; shared 1000 + 2000 + 500 + 40 + 60 = 3600: with 6 units 400 + 600 = 1000.
    fits, does_not = (
        evaluate(problem, [Stage(resource="a", first_layer=0, last_layer=1, units=units)]) for units in (6, 5)
    )

    assert not fits.violations
    assert does_not.violations == ("a unit of `a` would hold 1.12 kB of layers 0 to 1, and has 1 kB",)
    assert stage_memory([ROWS, DENSE], units=5).total_bytes == pytest.approx(1120)
