"""What a plan costs, worked out by hand, and the plans that have no price."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost import StageTimes, evaluate, stage_times
from dovetail.errors import PlanError
from dovetail.spec import read_problem
from tests.makers import make_layer, make_layer_time, make_link, make_problem, make_resource, make_stages

WORKED_EXAMPLE = """
[training]
samples = 45_840_617
epochs = 1
batch = 4096                  # the batch the times below were measured for
min_samples_per_s = 200_000.0 # 0 = no floor

[[resource]]
name = "cpu"
kind = "cpu"
price_per_hour = 0.04
limit = 960

[[resource]]
name = "v100"
kind = "gpu"
price_per_hour = 2.42

[[layer]]
name = "embedding"
kind = "embedding"
input_bytes = 425_984
output_bytes = 6_250_000
[layer.on.cpu]
compute_s = 0.110
comm_s = 0.020
compute_parallel = 0.98
comm_parallel = 0.90

[[layer]]
name = "tower"
kind = "fc"
[layer.on.v100]
compute_s = 0.016
comm_s = 0.004
compute_parallel = 0.95
comm_parallel = 0.80
source = "measured"
error = 0.1

[[link]]
from = "cpu"
to = "v100"
bytes_per_s = 12.5e9
latency_s = 5e-5
"""


# --- Prices -----------------------------------------------------------------------------------------------------------


def test_the_worked_example_costs_what_the_formulas_give_by_hand(tmp_path: Path):
    path = tmp_path / "example.toml"
    path.write_text(WORKED_EXAMPLE)

    priced = evaluate(read_problem(path), make_stages(("cpu", 0, 0, 10), ("v100", 1, 1, 2)))

    # cpu, 10 units:  compute 0.110 (0.02 + 0.98 / 10) = 0.110 * 0.118          = 0.01298
    #                 comm    0.020 (0.10 + 0.90 / 10) = 0.0038
    #                 cut     2 * 6.25e6 / 12.5e9 / 10 + 2 * 5e-5 = 0.0002      -> 0.0040
    # v100, 2 units:  compute 0.016 (0.05 + 0.95 / 2)  = 0.016 * 0.525          = 0.0084
    #                 comm    0.004 (0.20 + 0.80 / 2)  = 0.0024
    #                 cut     2 * 6.25e6 / 12.5e9 / 2 + 2 * 5e-5 = 0.0006       -> 0.0030
    assert priced.stage_seconds == pytest.approx((0.01298, 0.0084))
    assert priced.bottleneck == 0
    # 4096 / 0.01298; 45840617 / 4096 = 11191.5569 batches of 0.01298 s = 145.2664 s
    assert priced.samples_per_s == pytest.approx(315_562.404)
    assert priced.hours == pytest.approx(0.0403517801)
    # 10 * 0.04 + 2 * 2.42 = 5.24 an hour
    assert priced.cost_per_hour == pytest.approx(5.24)
    assert priced.cost == pytest.approx(0.2114433277)
    assert priced.violations == ()


def test_one_stage_costs_its_hours_times_its_units_times_their_price():
    problem = make_problem(
        layers=[make_layer(on={"cpu": make_layer_time(1.5)})],
        resources=[make_resource("cpu", 2.0)],
        samples=720_000,
        batch=100,
    )

    priced = evaluate(problem, make_stages(("cpu", 0, 0, 3)))

    # 1.5 s / 3 units = 0.5 s a batch of 100: 200 samples/s. 720000 / 200 = 3600 s = 1 h. 3 units * $2 * 1 h = $6.
    assert priced.stage_seconds == pytest.approx((0.5,))
    assert priced.samples_per_s == pytest.approx(200)
    assert priced.hours == pytest.approx(1)
    assert priced.cost_per_hour == pytest.approx(6)
    assert priced.cost == pytest.approx(6)


def test_the_slowest_stage_sets_the_pace_and_every_stage_is_paid_for():
    layers = [
        make_layer("a", on={"cpu": make_layer_time(1.0)}),
        make_layer("b", on={"gpu": make_layer_time(4.0)}),
        make_layer("c", on={"cpu": make_layer_time(2.0)}),
    ]

    priced = evaluate(make_problem(layers=layers), make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 2), ("cpu", 2, 2, 5)))

    # 1 / 1 = 1 s, 4 / 2 = 2 s, 2 / 5 = 0.4 s: one sample in 2 s. 3600 samples in 7200 s = 2 h.
    assert priced.stage_seconds == pytest.approx((1.0, 2.0, 0.4))
    assert priced.bottleneck == 1
    assert priced.samples_per_s == pytest.approx(0.5)
    # cpu at $1: 1 + 5, gpu at $10: 2. 6 + 20 = $26 an hour for 2 h.
    assert priced.cost_per_hour == pytest.approx(26)
    assert priced.cost == pytest.approx(52)


def test_the_layers_of_a_stage_add_up():
    # compute 1 + 1 = 2 s on one unit, comm 3 + 0.5 = 3.5 s: the stage takes 3.5 s.
    layers = [
        make_layer("a", on={"cpu": make_layer_time(1.0, 3.0)}),
        make_layer("b", on={"cpu": make_layer_time(1.0, 0.5)}),
    ]

    priced = evaluate(make_problem(layers=layers), make_stages(("cpu", 0, 1, 1)))

    assert priced.stage_seconds == pytest.approx((3.5,))


def test_the_first_of_equally_slow_stages_is_the_bottleneck():
    priced = evaluate(make_problem(), make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 1)))

    assert priced.bottleneck == 0


def test_without_links_cuts_are_free():
    layers = [make_layer("a", output_bytes=1e15), make_layer("b")]

    priced = evaluate(make_problem(layers=layers), make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 1)))

    assert priced.stage_seconds == pytest.approx((1.0, 1.0))


def test_a_stage_in_the_middle_pays_for_the_cuts_at_both_its_ends():
    layers = [
        make_layer("a", output_bytes=1e9),
        make_layer("b", output_bytes=3e9, on={"gpu": make_layer_time(1.0, 0.5)}),
        make_layer("c"),
    ]
    problem = make_problem(layers=layers, links=[make_link("cpu", "gpu", bytes_per_s=1e9, latency_s=0.1)])
    stages = make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 4), ("cpu", 2, 2, 2))

    priced = evaluate(problem, stages)

    # a on 1: cut 2 * 1e9 / 1e9 / 1 + 0.2 = 2.2                                   against compute 1
    # b on 4: comm 0.5 / 4 = 0.125, cuts 2 / 4 + 0.2 and 6 / 4 + 0.2 = 2.4: 2.525  against compute 0.25
    # c on 2: cut 6 / 2 + 0.2 = 3.2                                               against compute 0.5
    assert priced.stage_seconds == pytest.approx((2.2, 2.525, 3.2))
    middle = stage_times(problem, stages, 1)
    assert (middle.compute_s, middle.comm_s, middle.cut_s) == pytest.approx((0.25, 0.125, 2.4))


def test_a_stage_takes_the_longer_of_computation_and_communication_with_its_cuts():
    assert StageTimes(compute_s=3.0, comm_s=1.0, cut_s=1.5).seconds == 3.0
    assert StageTimes(compute_s=2.0, comm_s=1.0, cut_s=1.5).seconds == 2.5


def test_a_cut_that_hides_behind_computation_takes_nothing():
    layers = [make_layer("a", output_bytes=2e8), make_layer("b")]
    problem = make_problem(layers=layers, links=[make_link(bytes_per_s=1e9)])

    priced = evaluate(problem, make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 1)))

    # 2 * 2e8 / 1e9 = 0.4 s against 1 s of computation on each side.
    assert priced.stage_seconds == pytest.approx((1.0, 1.0))


def test_activations_take_the_link_forward_and_gradients_the_link_back():
    layers = [make_layer("a", output_bytes=1e9), make_layer("b")]
    links = [make_link("cpu", "gpu", bytes_per_s=1e9, latency_s=0.5), make_link("gpu", "cpu", bytes_per_s=5e8)]

    priced = evaluate(make_problem(layers=layers, links=links), make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 2)))

    # There 1e9 / 1e9 / k + 0.5, back 1e9 / 5e8 / k: on 1 unit 1.5 + 2 = 3.5, on 2 units 1 + 1 = 2.
    assert priced.stage_seconds == pytest.approx((3.5, 2.0))


def test_in_a_graph_every_edge_over_a_cut_is_paid_for():
    layers = [
        make_layer("user", output_bytes=1e9),
        make_layer("item", output_bytes=2e9, after=()),
        make_layer("both", after=("user", "item")),
    ]
    problem = make_problem(layers=layers, links=[make_link(bytes_per_s=1e9)])

    priced = evaluate(problem, make_stages(("cpu", 0, 1, 1), ("gpu", 2, 2, 2)))

    # (1e9 + 2e9) there and back over 1e9 bytes/s: 6 s on 1 unit, 3 s on 2.
    assert priced.stage_seconds == pytest.approx((6.0, 3.0))


def test_a_plan_that_takes_no_time_is_infinitely_fast_and_free():
    problem = make_problem(layers=[make_layer(on={"cpu": make_layer_time(0.0)})])

    priced = evaluate(problem, make_stages(("cpu", 0, 0, 1)))

    assert priced.samples_per_s == math.inf
    assert priced.hours == 0
    assert priced.cost == 0


def test_a_plan_that_takes_longer_than_any_float_never_ends():
    slow = {"cpu": make_layer_time(1.5e308)}
    problem = make_problem(layers=[make_layer("a", on=slow), make_layer("b", on=slow)])

    priced = evaluate(problem, make_stages(("cpu", 0, 1, 1)))

    assert priced.samples_per_s == 0
    assert priced.cost == math.inf


# --- Plans without a price --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message", "hint"),
    [
        pytest.param((), "there are no stages", "every layer once", id="no stages"),
        pytest.param(
            [("cpu", 1, 2, 1)], "stages[0].first_layer is 1, expected 0", "every layer once", id="first layer left out"
        ),
        pytest.param(
            [("cpu", 0, 0, 1), ("gpu", 2, 2, 1)],
            "stages[1].first_layer is 2, expected 1",
            "every layer once",
            id="middle layer left out",
        ),
        pytest.param(
            [("cpu", 0, 1, 1)],
            "stages end at layer 1, but the last layer is 2",
            "every layer once",
            id="last layer left out",
        ),
        pytest.param(
            [("cpu", 0, 1, 1), ("gpu", 1, 2, 1)],
            "stages[1].first_layer is 1, expected 2",
            "every layer once",
            id="layer placed twice",
        ),
        pytest.param(
            [("cpu", 0, 3, 1)],
            "stages[0].last_layer is 3, but the last layer is 2",
            "every layer once",
            id="layer that is not there",
        ),
        pytest.param(
            [("cpuu", 0, 2, 1)],
            'stages[0].resource is "cpuu", which is no resource',
            "did you mean `cpu`?",
            id="unknown type",
        ),
        pytest.param(
            [("gpu", 0, 2, 1)],
            "stages[0] puts layer `cpu-only` on `gpu`, where it cannot run",
            "it can run on: `cpu`",
            id="type where a layer cannot run",
        ),
        pytest.param(
            [("cpu", 0, 1, 1), ("cpu", 2, 2, 1)],
            "stages[1] is on `cpu` like the stage before it",
            "make the two one",
            id="neighbours of one type",
        ),
        pytest.param(
            [("cpu", 0, 1, 1), ("tpu", 2, 2, 1)],
            "stages[1] follows `cpu` on `tpu`, and no link joins the two",
            'add [[link]] from = "cpu" to = "tpu"',
            id="neighbours without a link",
        ),
    ],
)
def test_a_plan_that_does_not_fit_its_problem_is_refused_with_the_place_and_a_hint(stages, message, hint):
    everywhere = {name: make_layer_time() for name in ("cpu", "gpu", "tpu")}
    problem = make_problem(
        resources=[make_resource("cpu"), make_resource("gpu"), make_resource("tpu")],
        layers=[
            make_layer("first", on=everywhere),
            make_layer("cpu-only", on={"cpu": make_layer_time()}),
            make_layer("last", on=everywhere),
        ],
        links=[make_link("cpu", "gpu")],
    )

    with pytest.raises(PlanError) as caught:
        evaluate(problem, make_stages(*stages))

    assert str(caught.value) == message
    assert hint in caught.value.hint


def test_a_link_given_backwards_joins_neighbours_too():
    problem = make_problem(links=[make_link("gpu", "cpu")])

    assert evaluate(problem, make_stages(("cpu", 0, 0, 1), ("gpu", 1, 1, 1))).violations == ()


def test_neighbours_of_one_type_are_allowed_where_stages_may_be_split():
    priced = evaluate(make_problem(), make_stages(("cpu", 0, 0, 2), ("cpu", 1, 1, 4)), split_stages=True)

    # 1 s / 2 and 1 s / 4; 6 units at $1.
    assert priced.stage_seconds == pytest.approx((0.5, 0.25))
    assert priced.cost_per_hour == pytest.approx(6)


def test_where_links_are_given_split_stages_need_one_from_the_type_to_itself():
    stages = make_stages(("cpu", 0, 0, 1), ("cpu", 1, 1, 1))

    with pytest.raises(PlanError, match=r"^stages\[1\] follows `cpu` on `cpu`, and no link joins the two\n"):
        evaluate(make_problem(links=[make_link("cpu", "gpu")]), stages, split_stages=True)
    assert evaluate(make_problem(links=[make_link("cpu", "cpu")]), stages, split_stages=True).violations == ()


# --- Demands that are missed ------------------------------------------------------------------------------------------


def test_a_plan_below_the_floor_says_so():
    # 2 layers of 1 s on one unit: 0.5 samples/s.
    priced = evaluate(make_problem(min_samples_per_s=0.75), make_stages(("cpu", 0, 1, 1)))

    assert priced.violations == ("0.5 samples/s is below min_samples_per_s = 0.75",)


def test_a_plan_at_the_floor_meets_it_and_so_does_one_that_misses_it_by_rounding():
    stages = make_stages(("cpu", 0, 1, 1))

    assert evaluate(make_problem(min_samples_per_s=0.5), stages).violations == ()
    assert evaluate(make_problem(min_samples_per_s=0.5 * (1 + 1e-12)), stages).violations == ()
    assert evaluate(make_problem(min_samples_per_s=0.5 * (1 + 1e-6)), stages).violations != ()


def test_a_plan_may_use_a_limit_up_and_no_more():
    problem = make_problem(resources=[make_resource("cpu", limit=4), make_resource("gpu")])

    assert evaluate(problem, make_stages(("cpu", 0, 1, 4))).violations == ()
    assert evaluate(problem, make_stages(("cpu", 0, 1, 5))).violations == (
        "5 units of `cpu` are more than its limit of 4",
    )


def test_the_stages_of_one_type_share_its_limit():
    problem = make_problem(
        layers=[make_layer("a"), make_layer("b"), make_layer("c")],
        resources=[make_resource("cpu", limit=4), make_resource("gpu")],
    )

    priced = evaluate(problem, make_stages(("cpu", 0, 0, 3), ("gpu", 1, 1, 9), ("cpu", 2, 2, 2)))

    assert priced.violations == ("5 units of `cpu` are more than its limit of 4",)


def test_no_plan_uses_more_than_a_million_units_of_a_type():
    assert evaluate(make_problem(), make_stages(("cpu", 0, 1, 1_000_000))).violations == ()
    assert evaluate(make_problem(), make_stages(("cpu", 0, 1, 1_000_001))).violations == (
        "1000001 units of `cpu` are more than its limit of 1000000",
    )


def test_every_missed_demand_is_told():
    problem = make_problem(
        resources=[make_resource("cpu", limit=1), make_resource("gpu", limit=2)], min_samples_per_s=100
    )

    priced = evaluate(problem, make_stages(("cpu", 0, 0, 2), ("gpu", 1, 1, 4)))

    assert priced.violations == (
        "2 samples/s is below min_samples_per_s = 100",
        "2 units of `cpu` are more than its limit of 1",
        "4 units of `gpu` are more than its limit of 2",
    )
    assert priced.cost > 0


# --- How prices scale -------------------------------------------------------------------------------------------------

seconds = st.floats(1e-6, 1e3)
fractions = st.floats(0, 1)
times = st.builds(
    make_layer_time, compute_s=seconds, comm_s=seconds, compute_parallel=fractions, comm_parallel=fractions
)
units = st.integers(1, 1000)
factors = st.integers(1, 1000)


@settings(deadline=None)  # a busy machine is not a mistake
@given(on_cpu=times, on_gpu=times, cpus=units, gpus=units, factor=factors)
def test_cost_grows_with_the_samples_the_epochs_and_the_prices(on_cpu, on_gpu, cpus, gpus, factor):
    layers = [make_layer("a", on={"cpu": on_cpu}), make_layer("b", on={"gpu": on_gpu})]
    stages = make_stages(("cpu", 0, 0, cpus), ("gpu", 1, 1, gpus))
    dear = [make_resource("cpu", 1.0 * factor), make_resource("gpu", 10.0 * factor)]

    cost = evaluate(make_problem(layers=layers), stages).cost

    assert evaluate(make_problem(layers=layers, samples=3600 * factor), stages).cost == pytest.approx(cost * factor)
    assert evaluate(make_problem(layers=layers, epochs=factor), stages).cost == pytest.approx(cost * factor)
    assert evaluate(make_problem(layers=layers, resources=dear), stages).cost == pytest.approx(cost * factor)


@settings(deadline=None)  # a busy machine is not a mistake
@given(on_cpu=times, on_gpu=times, cpus=units, gpus=units, more=units, output_bytes=st.floats(0, 1e10))
def test_more_units_never_slow_a_plan(on_cpu, on_gpu, cpus, gpus, more, output_bytes):
    layers = [make_layer("a", on={"cpu": on_cpu}, output_bytes=output_bytes), make_layer("b", on={"gpu": on_gpu})]
    problem = make_problem(layers=layers, links=[make_link(latency_s=1e-3)])

    fewer = evaluate(problem, make_stages(("cpu", 0, 0, cpus), ("gpu", 1, 1, gpus)))

    assert evaluate(problem, make_stages(("cpu", 0, 0, cpus + more), ("gpu", 1, 1, gpus))).hours <= fewer.hours
    assert evaluate(problem, make_stages(("cpu", 0, 0, cpus), ("gpu", 1, 1, gpus + more))).hours <= fewer.hours
