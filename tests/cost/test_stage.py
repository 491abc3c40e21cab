"""What one stage takes, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost.stage import add_up, amdahl_seconds, comm_seconds, compute_seconds
from dovetail.spec import LayerTime
from tests.makers import make_layer_time


def test_one_unit_takes_what_was_measured_whatever_can_be_shared():
    assert amdahl_seconds(3.0, parallel=0.0, units=1) == 3.0
    assert amdahl_seconds(3.0, parallel=0.5, units=1) == 3.0
    assert amdahl_seconds(3.0, parallel=1.0, units=1) == 3.0


def test_work_that_can_be_shared_entirely_is_divided_by_the_units():
    # 3 s / 4
    assert amdahl_seconds(3.0, parallel=1.0, units=4) == pytest.approx(0.75)


def test_work_that_cannot_be_shared_takes_as_long_on_many_units():
    assert amdahl_seconds(3.0, parallel=0.0, units=1000) == 3.0


def test_work_that_can_be_shared_in_part_follows_amdahl():
    # 10 s of which 80% are shared by 4: 2 s + 8 s / 4
    assert amdahl_seconds(10.0, parallel=0.8, units=4) == pytest.approx(4.0)


def test_the_layers_of_a_stage_add_up_each_with_its_own_fraction():
    layers = [make_layer_time(10.0, 4.0, compute_parallel=0.8, comm_parallel=0.5), make_layer_time(6.0, 2.0)]

    # compute on 2: 10 (0.2 + 0.8 / 2) + 6 / 2 = 6 + 3
    assert compute_seconds(layers, units=2) == pytest.approx(9.0)
    # comm on 2: 4 (0.5 + 0.5 / 2) + 2 / 2 = 3 + 1
    assert comm_seconds(layers, units=2) == pytest.approx(4.0)


def test_communication_hides_behind_longer_computation():
    assert add_up([make_layer_time(5.0, 3.0)], units=1).seconds == 5.0


def test_computation_hides_behind_longer_communication():
    assert add_up([make_layer_time(3.0, 5.0)], units=1).seconds == 5.0


def test_the_two_are_compared_over_the_whole_stage_and_not_layer_by_layer():
    # compute 4 + 1 = 5, comm 1 + 3 = 4: the stage takes 5. Layer by layer it would be 4 + 3 = 7.
    assert add_up([make_layer_time(4.0, 1.0), make_layer_time(1.0, 3.0)], units=1).seconds == 5.0


def test_units_can_turn_a_stage_from_computing_to_communicating():
    layers = [make_layer_time(8.0, 3.0, compute_parallel=1.0, comm_parallel=0.0)]

    # On 2 units: compute 8 / 2 = 4 against comm 3. On 4: compute 8 / 4 = 2 against comm 3.
    assert add_up(layers, units=2).seconds == 4.0
    assert add_up(layers, units=4).seconds == 3.0


def test_cuts_count_as_communication():
    # comm 2 + cut 4 = 6 against compute 5.
    assert add_up([make_layer_time(5.0, 2.0)], units=1, cut_s=4.0).seconds == 6.0


def test_cuts_hide_behind_computation_as_long_as_they_fit():
    # comm 2 + cut 3 = 5 against compute 5.
    assert add_up([make_layer_time(5.0, 2.0)], units=1, cut_s=3.0).seconds == 5.0


def test_layers_may_take_no_time():
    assert add_up([make_layer_time(0.0, 0.0)], units=3).seconds == 0.0


def test_layers_may_come_from_a_generator():
    # compute 1 + 1 = 2, comm 3 + 3 = 6: the generator is read once for both.
    assert add_up((make_layer_time(1.0, 3.0) for _ in range(2)), units=1).seconds == 6.0


seconds = st.floats(0, 1e6)
fractions = st.floats(0, 1)
layer_times = st.builds(
    LayerTime, compute_s=seconds, comm_s=seconds, compute_parallel=fractions, comm_parallel=fractions
)


@settings(deadline=None)  # a busy machine is not a mistake
@given(layers=st.lists(layer_times, min_size=1, max_size=6), units=st.integers(1, 10**6), more=st.integers(1, 10**6))
def test_more_units_never_slow_a_stage(layers, units, more):
    assert add_up(layers, units=units + more).seconds <= add_up(layers, units=units).seconds


@settings(deadline=None)  # a busy machine is not a mistake
@given(layers=st.lists(layer_times, min_size=1, max_size=6), units=st.integers(1, 10**6))
def test_a_stage_takes_no_less_than_what_cannot_be_shared_and_no_more_than_one_unit(layers, units):
    alone = sum(layer.compute_s * (1 - layer.compute_parallel) for layer in layers)

    assert alone <= add_up(layers, units=units).seconds <= add_up(layers, units=1).seconds
