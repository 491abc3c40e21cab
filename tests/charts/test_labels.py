"""Labels that are shortened and make room for each other."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.charts.style import shorten, shorten_to, spread_apart, text_width_inches


def test_a_long_name_keeps_both_its_ends():
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("abc", 7) == "abc"
    assert shorten("two\nlines\tand\x00 more", 40) == "two lines and more"


def test_a_name_is_shortened_until_it_fits():
    assert shorten_to("short", 5.0, 10) == "short"
    assert text_width_inches(shorten_to("W" * 60, 1.0, 10), 10) <= 1.0


def test_labels_at_one_place_move_apart_evenly():
    assert spread_apart([5.0, 5.0], [2.0, 2.0], low=0, high=10) == pytest.approx([4.0, 6.0])


def test_labels_that_are_apart_stay():
    assert spread_apart([1.0, 5.0, 9.0], [1.0, 1.0, 1.0], low=0, high=10) == pytest.approx([1.0, 5.0, 9.0])


def test_labels_at_the_edge_stay_on_the_page():
    assert spread_apart([0.0, 0.1], [1.0, 1.0], low=0, high=10) == pytest.approx([0.5, 1.5])


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 4.0)), min_size=1, max_size=20),
)
def test_labels_with_room_never_overlap_and_never_leave(labels: list[tuple[float, float]]):
    wanted = sorted(place for place, _ in labels)
    widths = [width for _, width in labels]

    places = spread_apart(wanted, widths, low=0, high=100)

    edges = [(place - width / 2, place + width / 2) for place, width in zip(places, widths, strict=True)]
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 100 + 1e-9
    for (_, right), (left, _) in itertools.pairwise(edges):
        assert right <= left + 1e-9
