"""The colours of types, told apart by everyone."""

import pytest

from dovetail.charts.style import ink_on, type_colour

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}


def lab_as_seen(colour: str, vision: str) -> tuple[float, float, float]:
    """Return CIE L*a*b* (D65) of a colour as people with a kind of colour vision see it."""
    srgb = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in srgb]
    r, g, b = (min(max(sum(k * c for k, c in zip(row, linear, strict=True)), 0), 1) for row in VISION[vision])
    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("num_types", "least_distance"), [(8, 10), (16, 8), (64, 3)])
def test_types_can_be_told_apart_with_any_colour_vision(vision: str, num_types: int, least_distance: float):
    # A difference of 2.3 in L*a*b* is what people just notice side by side.
    seen = [lab_as_seen(type_colour(position), vision) for position in range(num_types)]
    distances = [
        sum((p - q) ** 2 for p, q in zip(one, other, strict=True)) ** 0.5
        for position, one in enumerate(seen)
        for other in seen[:position]
    ]

    assert min(distances) > least_distance


def test_more_types_than_colours_start_over():
    assert type_colour(64) == type_colour(0)


def test_words_on_a_colour_are_black_or_white_whichever_stands_out():
    assert ink_on("#f0e442") == "#101010"
    assert ink_on("#4a2a7f") == "#ffffff"
