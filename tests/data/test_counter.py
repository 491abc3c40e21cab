"""Draws without a state."""

import numpy as np

from dovetail.data.counter import draw, stream_of, unit


def test_draws_are_those_of_splitmix64():
    # The published first outputs of SplitMix64 seeded with 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]

    assert [int(draw(np.uint64(1234567), np.uint64(n))) & (2**64 - 1) for n in range(5)] == published


def test_units_fill_the_interval_evenly():
    stream = stream_of(3, "test")
    units = np.array([unit(np.uint64(draw(stream, np.uint64(n)))) for n in range(20_000)])

    counts, _ = np.histogram(units, bins=10, range=(0.0, 1.0))
    # Each bin expects 2000 with a standard deviation of 42: five of them are 212.
    assert abs(counts - 2000).max() < 212


def test_unlike_purposes_have_unlike_streams():
    assert len({int(stream_of(seed, purpose)) for seed in range(50) for purpose in ("a", "b", "ab")}) == 150
