"""What a problem answers about itself: order, edges, kinds, links and its hash."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.errors import SpecError
from dovetail.spec import Problem, Training
from tests.makers import make_layer, make_layer_time, make_link, make_problem, make_resource


def names(problem: Problem) -> list[str]:
    """Return the layers' names in planning order."""
    return [layer.name for layer in problem.layers]


def named_edges(problem: Problem) -> set[tuple[str, str]]:
    """Return the edges with names for positions."""
    order = names(problem)
    return {(order[producer], order[consumer]) for producer, consumer in problem.edges()}


# --- Order and edges --------------------------------------------------------------------------------------------------


def test_layers_without_after_read_the_layer_before_them():
    problem = make_problem(layers=[make_layer("a"), make_layer("b"), make_layer("c")])

    assert list(problem.edges()) == [(0, 1), (1, 2)]
    assert problem.is_chain


def test_one_layer_has_no_edges_and_is_a_chain():
    problem = make_problem(layers=[make_layer("alone")])

    assert list(problem.edges()) == []
    assert problem.is_chain


def test_a_graph_has_an_edge_from_every_layer_that_another_reads():
    # user --+
    #        +--> both --> loss
    # item --+
    problem = make_problem(
        layers=[
            make_layer("user"),
            make_layer("item", after=()),
            make_layer("both", after=("user", "item")),
            make_layer("loss"),
        ]
    )

    assert list(problem.edges()) == [(0, 2), (1, 2), (2, 3)]
    assert not problem.is_chain


def test_a_chain_that_says_its_edges_is_a_chain_too():
    problem = make_problem(layers=[make_layer("a", after=()), make_layer("b", after=("a",)), make_layer("c")])

    assert problem.is_chain


def test_a_layer_named_twice_in_after_is_read_once():
    problem = make_problem(layers=[make_layer("a"), make_layer("b", after=("a", "a"))])

    assert list(problem.edges()) == [(0, 1)]


def test_layers_in_reading_order_stay_as_they_came():
    layers = (make_layer("a"), make_layer("b", after=()), make_layer("c", after=("a",)))

    assert make_problem(layers=layers).layers == layers


def test_a_layer_that_reads_a_later_one_is_moved_behind_it():
    problem = make_problem(
        layers=[
            make_layer("head", after=("right", "left")),
            make_layer("left", after=()),
            make_layer("right", after=()),
        ]
    )

    assert names(problem) == ["left", "right", "head"]
    assert named_edges(problem) == {("left", "head"), ("right", "head")}


def test_moving_layers_changes_no_edge():
    # `tail` reads `head`, the layer before it in the file, wherever `head` goes.
    problem = make_problem(
        layers=[
            make_layer("head", after=("late",)),
            make_layer("tail"),
            make_layer("late", after=()),
            make_layer("end"),
        ]
    )

    assert names(problem) == ["late", "head", "tail", "end"]
    assert named_edges(problem) == {("late", "head"), ("head", "tail"), ("late", "end")}


def test_every_edge_points_forward_after_sorting():
    reads = {"e": ("c", "d"), "d": ("b",), "c": ("a", "b"), "b": ("a",), "a": ()}
    problem = make_problem(layers=[make_layer(name, after=after) for name, after in reads.items()])

    assert all(producer < consumer for producer, consumer in problem.edges())
    assert named_edges(problem) == {(before, name) for name, after in reads.items() for before in after}


def test_a_sorted_problem_made_again_stays_the_same():
    problem = make_problem(layers=[make_layer("head", after=("tail",)), make_layer("tail", after=())])

    assert make_problem(layers=problem.layers) == problem


def test_a_long_circle_is_told_in_short():
    count = 1000
    layers = [make_layer(f"l{number}", after=(f"l{(number + 1) % count}",)) for number in range(count)]

    with pytest.raises(SpecError) as caught:
        make_problem(layers=layers)

    assert str(caught.value).startswith("layer[0].after closes a circle: `l0` reads `l1` reads `l2`")
    assert str(caught.value).endswith("reads ... reads `l0`")


# --- The hash ---------------------------------------------------------------------------------------------------------


def test_equal_problems_have_one_digest():
    assert make_problem().digest() == make_problem().digest()


def test_a_digest_is_sixteen_hexadecimal_digits():
    digest = make_problem().digest()

    assert len(digest) == 16
    assert int(digest, 16) >= 0


def test_a_digest_does_not_depend_on_the_order_of_types_in_a_layer():
    time = make_layer_time(0.5)
    one = make_problem(layers=[make_layer(on={"cpu": time, "gpu": make_layer_time()})])
    other = make_problem(layers=[make_layer(on={"gpu": make_layer_time(), "cpu": time})])

    assert one.digest() == other.digest()


def test_a_digest_does_not_tell_two_from_two_point_zero():
    whole = make_problem(resources=[make_resource("cpu", 2), make_resource("gpu", 10)], epochs=1)
    decimal = make_problem(resources=[make_resource("cpu", 2.0), make_resource("gpu", 10.0)])

    assert whole == decimal
    assert whole.digest() == decimal.digest()


@pytest.mark.parametrize(
    "changed",
    [
        make_problem(samples=3601),
        make_problem(batch=2),
        make_problem(epochs=2),
        make_problem(min_samples_per_s=1),
        make_problem(resources=[make_resource("cpu", 1.5), make_resource("gpu", 10.0)]),
        make_problem(resources=[make_resource("cpu", 1.0, limit=3), make_resource("gpu", 10.0)]),
        make_problem(layers=[make_layer("first"), make_layer("other")]),
        make_problem(layers=[make_layer("second"), make_layer("first")]),
        make_problem(layers=[make_layer("first"), make_layer("second", on={"cpu": make_layer_time(1.0)})]),
        make_problem(layers=[make_layer("first", output_bytes=1.0), make_layer("second")]),
        make_problem(links=[make_link()]),
    ],
)
def test_a_digest_changes_with_what_the_problem_says(changed):
    assert changed.digest() != make_problem().digest()


# --- Kinds ------------------------------------------------------------------------------------------------------------


def kinds(problem: Problem) -> list[str]:
    """Return the kind of each type."""
    return [problem.kind_of(resource) for resource in problem.resources]


def test_where_no_type_says_its_kind_the_cheapest_is_the_cpu_and_the_others_are_gpus():
    problem = make_problem(resources=[make_resource("gpu", 5.0), make_resource("cpu", 0.1), make_resource("tpu", 8.0)])

    assert kinds(problem) == ["gpu", "cpu", "gpu"]


def test_of_two_cheapest_types_the_first_is_the_cpu():
    problem = make_problem(resources=[make_resource("cpu", 1.0), make_resource("gpu", 1.0)])

    assert kinds(problem) == ["cpu", "gpu"]


def test_where_any_type_says_its_kind_the_silent_ones_are_other():
    problem = make_problem(resources=[make_resource("cpu", 0.1), make_resource("gpu", 5.0, kind="gpu")])

    assert kinds(problem) == ["other", "gpu"]


def test_a_kind_that_is_said_holds_whatever_the_price():
    problem = make_problem(resources=[make_resource("cpu", 9.0, kind="cpu"), make_resource("gpu", 1.0, kind="gpu")])

    assert kinds(problem) == ["cpu", "gpu"]


def test_a_copy_of_a_type_has_the_kind_of_the_type():
    problem = make_problem()

    assert problem.kind_of(make_resource("cpu", 1.0)) == "cpu"


# --- Links ------------------------------------------------------------------------------------------------------------


def test_a_link_serves_both_directions():
    link = make_link("cpu", "gpu")
    problem = make_problem(links=[link])

    assert problem.link("cpu", "gpu") == link
    assert problem.link("gpu", "cpu") == link


@pytest.mark.parametrize("backwards_first", [False, True])
def test_where_both_directions_are_given_each_has_its_own_link(backwards_first):
    there, back = make_link("cpu", "gpu", 1e9), make_link("gpu", "cpu", 2e9)
    problem = make_problem(links=[back, there] if backwards_first else [there, back])

    assert problem.link("cpu", "gpu") == there
    assert problem.link("gpu", "cpu") == back


def test_types_that_no_link_joins_have_none():
    resources = [make_resource("cpu"), make_resource("gpu"), make_resource("tpu")]
    problem = make_problem(resources=resources, links=[make_link("cpu", "gpu")])

    assert problem.link("cpu", "tpu") is None
    assert make_problem().link("cpu", "gpu") is None


def test_both_directions_of_a_link_may_be_given_but_neither_twice():
    there, back = make_link("cpu", "gpu"), make_link("gpu", "cpu")

    assert len(make_problem(links=[there, back]).links) == 2
    with pytest.raises(SpecError, match=r"^link\[2\] gives the way from `gpu` to `cpu` a second time\n"):
        make_problem(links=[there, back, back])


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (make_problem(), "layers"),
        (make_resource(), "price_per_hour"),
        (make_layer(), "on"),
        (make_layer_time(), "compute_s"),
        (make_link(), "bytes_per_s"),
        (Training(samples=1, batch=1), "samples"),
    ],
)
def test_what_is_described_cannot_be_changed(value, name):
    with pytest.raises(AttributeError):
        setattr(value, name, 1)


def test_replacing_a_value_checks_it_again():
    with pytest.raises(SpecError, match=r"^price_per_hour is 0, expected a number above zero\n"):
        msgspec.structs.replace(make_resource(), price_per_hour=0.0)


def test_a_type_is_found_by_its_name():
    problem = make_problem()

    assert problem.resource("gpu") is problem.resources[1]


def test_a_type_without_a_limit_has_a_million_units():
    assert make_resource().units_to_be_had == 1_000_000
    assert make_resource(limit=7).units_to_be_had == 7
    assert make_resource(limit=0).units_to_be_had == 0
    assert make_resource(limit=10**12).units_to_be_had == 1_000_000


def test_a_type_may_have_no_units_as_long_as_every_layer_runs_elsewhere():
    problem = make_problem(resources=[make_resource("cpu"), make_resource("gpu", limit=0)])

    assert problem.resource("gpu").units_to_be_had == 0


def test_all_samples_are_those_of_every_epoch():
    assert Training(samples=1000, batch=10, epochs=2.5).total_samples == 2500


def test_samples_beyond_every_float_are_infinitely_many_and_no_crash():
    assert Training(samples=10**308, batch=1, epochs=100).total_samples == float("inf")
