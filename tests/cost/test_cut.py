"""What a cut between two stages takes, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cost.plan import crossing_bytes, cut_seconds
from tests.makers import make_layer, make_link, make_problem


def test_a_cut_takes_the_payload_there_and_back_and_two_latencies():
    link = make_link(bytes_per_s=1e9, latency_s=0.01)

    # 2 * 5e8 / 1e9 + 2 * 0.01 = 1 + 0.02
    assert cut_seconds(5e8, forward=link, backward=link, units=1) == pytest.approx(1.02)


def test_units_share_the_payload_and_not_the_latency():
    link = make_link(bytes_per_s=1e9, latency_s=0.01)

    # 2 * 5e8 / 1e9 / 4 + 2 * 0.01 = 0.25 + 0.02
    assert cut_seconds(5e8, forward=link, backward=link, units=4) == pytest.approx(0.27)


def test_each_direction_takes_its_own_link():
    forward = make_link(bytes_per_s=1e9, latency_s=0.01)
    backward = make_link(bytes_per_s=5e8, latency_s=0.03)

    # Forward 1e9 / 1e9 / 2 + 0.01 = 0.51, back 1e9 / 5e8 / 2 + 0.03 = 1.03
    assert cut_seconds(1e9, forward=forward, backward=backward, units=2) == pytest.approx(1.54)


def test_nothing_to_carry_still_takes_two_latencies():
    link = make_link(latency_s=0.01)

    assert cut_seconds(0.0, forward=link, backward=link, units=8) == pytest.approx(0.02)


def test_in_a_chain_a_cut_is_crossed_by_the_layer_before_it():
    problem = make_problem(
        layers=[make_layer("a", output_bytes=10), make_layer("b", output_bytes=200), make_layer("c", output_bytes=3000)]
    )

    assert crossing_bytes(problem, 0) == 10
    assert crossing_bytes(problem, 1) == 200


def test_nothing_crosses_behind_the_last_layer():
    problem = make_problem(layers=[make_layer("a", output_bytes=10), make_layer("b", output_bytes=200)])

    assert crossing_bytes(problem, 1) == 0


def test_in_a_graph_every_edge_over_the_cut_counts():
    # user (10) --+
    #             +--> both (3000) --> loss
    # item (200) -+
    problem = make_problem(
        layers=[
            make_layer("user", output_bytes=10),
            make_layer("item", output_bytes=200, after=()),
            make_layer("both", output_bytes=3000, after=("user", "item")),
            make_layer("loss"),
        ]
    )

    assert crossing_bytes(problem, 0) == 10  # user to both
    assert crossing_bytes(problem, 1) == 210  # user and item to both
    assert crossing_bytes(problem, 2) == 3000  # both to loss


def test_an_edge_that_skips_layers_counts_at_every_cut_it_passes():
    # a (10) --> b (200) --> c (3000) --> d, and a --> d
    problem = make_problem(
        layers=[
            make_layer("a", output_bytes=10),
            make_layer("b", output_bytes=200),
            make_layer("c", output_bytes=3000),
            make_layer("d", after=("c", "a")),
        ]
    )

    assert crossing_bytes(problem, 0) == 20  # a to b, a to d
    assert crossing_bytes(problem, 1) == 210  # b to c, a to d
    assert crossing_bytes(problem, 2) == 3010  # c to d, a to d


def test_two_readers_beyond_a_cut_are_two_edges():
    problem = make_problem(
        layers=[make_layer("a", output_bytes=10), make_layer("b", after=("a",)), make_layer("c", after=("a",))]
    )

    assert crossing_bytes(problem, 0) == 20


@settings(deadline=None)  # a busy machine is not a mistake
@given(
    payload_bytes=st.floats(0, 1e12),
    bytes_per_s=st.floats(1e3, 1e12),
    latency_s=st.floats(0, 10),
    units=st.integers(1, 10**6),
    more=st.integers(1, 10**6),
)
def test_more_units_never_slow_a_cut(payload_bytes, bytes_per_s, latency_s, units, more):
    link = make_link(bytes_per_s=bytes_per_s, latency_s=latency_s)

    fewer_s = cut_seconds(payload_bytes, forward=link, backward=link, units=units)
    assert cut_seconds(payload_bytes, forward=link, backward=link, units=units + more) <= fewer_s
