"""The noise of codes against the gradient that it is added to."""

import numpy as np
import pytest

from dovetail.codecs.noise import MOST_SAMPLED, Noise, sampled
from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of


def noise_of(bits, *, spread=0.0, steps=20):
    """Return the noise of a width on gradients whose parameters differ in size."""
    draw, noise = np.random.default_rng(1), Noise()
    sizes = np.exp(spread * draw.standard_normal(2000)).astype(np.float32)
    residual = np.zeros(2000, dtype=np.float32)
    for step in range(steps):
        gradients = sizes * draw.standard_normal(2000).astype(np.float32)
        before = residual.copy()
        pack(gradients, codec_of(bits), seed=step, residual=residual)
        noise.add_dense(gradients, before, residual)
    return noise.part


def test_without_codes_there_is_none():
    assert Noise().part == 0.0


def test_fewer_bits_are_noisier():
    parts = [noise_of(bits) for bits in (16, 8, 4, 2, 1)]

    assert parts == sorted(parts)
    assert parts[0] < 1e-4
    assert parts[-1] > 0.1


def test_numbers_that_differ_in_size_are_noisier():
    assert noise_of(8) < noise_of(8, spread=2.0)


def test_parameters_without_gradients_and_what_is_no_number_do_not_count():
    noise = Noise()
    gradients, errors = np.array([1.0, 0.0, np.nan], np.float32), np.array([0.5, 0.5, 0.5], np.float32)

    noise.add_dense(gradients, np.zeros(3, np.float32), errors)

    assert noise.part == pytest.approx(0.2)  # 0.25 / 1.25


def test_rows_count_as_well_each_by_itself():
    rows = np.random.default_rng(2).standard_normal((500, 10)).astype(np.float32)
    parts = []
    for bits in (8, 4):
        noise = Noise()
        noise.add_rows(rows, unpack(pack(rows, codec_of(bits, block=32))))
        parts.append(noise.part)

    assert 0 < parts[0] < 0.002 < parts[1] < 0.1


@pytest.mark.parametrize("size", [0, 1, MOST_SAMPLED, MOST_SAMPLED + 1, 10 * MOST_SAMPLED])
def test_a_sample_is_never_too_large_and_is_from_everywhere(size):
    places = range(size)[sampled(size)]

    assert len(places) <= MOST_SAMPLED
    assert not size or places[-1] >= size - 1 - size / max(1, len(places))
