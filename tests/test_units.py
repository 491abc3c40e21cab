"""Durations, counts and money as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import SpecError
from dovetail.units import format_count, format_duration, format_plain, format_usd, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("30min", 1800),
        ("6h", 21_600),
        ("2d", 172_800),
        ("1h30m", 5400),
        ("1d12h", 129_600),
        ("1h 30m", 5400),
        (" 6 h ", 21_600),
        ("6H", 21_600),
        ("1.5h", 5400),
        ("0.25s", 0.25),
        ("0h30m", 1800),
    ],
)
def test_a_duration_is_read_as_seconds(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "90",
        "h",
        "-6h",
        "+6h",
        "0s",
        "0h0m",
        "6 hours",
        "6x",
        "6hh",
        "1e3s",
        ".5h",
        "1.h",
        "2ms",
        "6,5h",
        "inf",
        "nan",
    ],
)
def test_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(SpecError) as caught:
        parse_duration_s(text)

    assert str(caught.value) == f"`{text}` is not a duration above zero"
    assert caught.value.hint == "write it like 90s, 30m, 6h, 2d or 1h30m"


def test_a_duration_beyond_every_float_is_refused():
    with pytest.raises(SpecError, match="is not a duration"):
        parse_duration_s("9" * 400 + "d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (8.5e-4, "850 us"),
        (9.994e-4, "999 us"),
        (9.996e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (1, "1 s"),
        (4.1, "4.1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (2100, "35 min"),
        (7200, "2 h"),
        (23_040, "6.4 h"),
        (172_800, "2 d"),
        (276_480, "3.2 d"),
        (86_400 * 999.6, "1,000 d"),
        (86_400 * 12_345, "12,345 d"),
    ],
)
def test_a_duration_is_shown_in_the_unit_a_person_would_pick(seconds, text):
    assert format_duration(seconds) == text


@settings(deadline=None)  # a busy machine is not a mistake
@given(seconds=st.floats(1e-6, 1e12))
def test_a_shown_duration_has_no_exponent_and_is_right_to_three_figures(seconds):
    number, unit = format_duration(seconds).split(" ")

    scale = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400}[unit]
    assert "e" not in number
    assert float(number.replace(",", "")) * scale == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (950, "950"),
        (1000, "1 k"),
        (12_345, "12.35 k"),
        (4_560_000, "4.56 M"),
        (2.5e9, "2.5 G"),
        (15.7e12, "15.7 T"),
        (-1500, "-1.5 k"),
    ],
)
def test_a_count_is_shown_in_up_to_four_figures(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0"),
        (0.001234567, "$0.001235"),
        (0.78, "$0.78"),
        (1, "$1.00"),
        (12.345, "$12.35"),
        (1234.5, "$1,234.50"),
        (9_876_543.21, "$9,876,543.21"),
    ],
)
def test_money_is_shown_with_cents_and_finer_below_a_dollar(amount, text):
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(3.959784e6, "3959780"), (0.04, "0.04"), (181000.0, "181000"), (12.26, "12.26"), (1e-9, "0.000000001")],
)
def test_plain_numbers_have_six_figures_and_no_exponent(number: float, text: str) -> None:
    assert format_plain(number) == text
