"""Codecs: their means, what feedback makes of them, and how large they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dovetail.codecs.codec import Codec
from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of
from dovetail.codecs.top_k import TopK

WIDTHS = (16, 8, 4, 2, 1)
KEEPING: list[Codec] = [codec for codec in map(codec_of, WIDTHS) if codec is not None]
KEEPING += [TopK(0.1)]
NUMBERS = st.floats(-1e6, 1e6, width=32)


def there_and_back(codec: Codec, values: np.ndarray, **options: object) -> np.ndarray:
    return unpack(pack(values, codec, **options), values.shape)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_mean_of_many_encodings_is_what_went_in(bits):
    values = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    codec, num_draws = codec_of(bits), 4000

    draws = np.array([there_and_back(codec, values, seed=seed) for seed in range(num_draws)], dtype=np.float64)

    # Six standard errors of each number's mean: one in 5 * 10^8 is further off by chance, and there are 1000 here.
    # What falls the other way less than once in a thousand draws shows no spread: ten such draws are granted.
    rare = 10 * 2 * np.abs(values).max() / {16: 256, 8: 127, 4: 7, 2: 1, 1: 1}[bits] / num_draws
    error = 6 * draws.std(axis=0) / np.sqrt(num_draws) + rare
    assert (np.abs(draws.mean(axis=0) - values) <= error).all()


@pytest.mark.parametrize("codec", KEEPING, ids=lambda codec: codec.name)
@given(steps=st.lists(arrays(np.float32, 37, elements=NUMBERS), min_size=1, max_size=8), seed=st.integers(0, 2**63))
@settings(max_examples=40, deadline=None)
def test_with_feedback_what_arrived_adds_up_to_what_was_sent_less_the_last_residual(codec, steps, seed):
    residual = np.zeros(37, dtype=np.float32)
    arrived = np.zeros(37)

    for number, values in enumerate(steps):
        arrived += there_and_back(codec, values, seed=seed + number, residual=residual)

    sent = np.sum(np.array(steps, dtype=np.float64), axis=0)
    largest = max(1.0, *(float(np.abs(values).max()) for values in steps))
    assert np.abs(sent - arrived - residual).max() <= 1e-5 * largest * len(steps)


@pytest.mark.parametrize("codec", KEEPING, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", ["dense", "nearly sparse"])
def test_a_residual_stays_bounded(codec, kind):
    draw = np.random.default_rng(2)
    residual, largest = np.zeros(640, dtype=np.float32), 0.0
    for step in range(400):
        values = draw.standard_normal(640).astype(np.float32)
        if kind == "nearly sparse":
            values *= draw.random(640) < 0.02
        there_and_back(codec, values, seed=step, residual=residual)
        largest = max(largest, float(np.linalg.norm(residual)))

    # Top-k of a tenth keeps nine tenths back for ten steps: about 10 times a step's norm, which is at most 25.3.
    assert largest < 15 * np.sqrt(640)


@pytest.mark.parametrize("bits", WIDTHS)
@given(values=arrays(np.float32, st.integers(1, 200), elements=NUMBERS), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=30, deadline=None)
def test_no_number_is_off_by_more_than_a_level(bits, values, seed):
    back = there_and_back(codec_of(bits), values, seed=seed)

    # Scales are rounded up to 8 bits of mantissa; 16 bits are relative to the number itself.
    scale = np.abs(values).max() * (1 + 2**-7)
    level = {16: scale / 128, 8: scale / 127, 4: scale * 13 / 49, 2: scale, 1: 2 * scale}[bits]
    assert np.abs(back - values).max() <= level * 1.001 + 1e-29


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_a_number_that_is_none_is_seen_on_the_other_side_and_not_kept(bits):
    values = np.ones(128, dtype=np.float32)
    values[70] = np.nan
    residual = np.zeros(128, dtype=np.float32)

    back = there_and_back(codec_of(bits), values, seed=0, residual=residual)

    assert np.isnan(back[64:]).all()
    assert np.isfinite(back[:64]).all()
    assert np.isfinite(residual).all()


def test_top_k_sends_what_is_no_number_and_keeps_nothing_of_it():
    values = np.ones(50, dtype=np.float32)
    values[10:40] = np.nan  # more than go
    values[45] = np.inf
    residual = np.zeros(50, dtype=np.float32)

    back = there_and_back(TopK(0.1), values, residual=residual)

    assert np.isnan(back).any()
    assert np.isfinite(residual).all()
    np.testing.assert_array_equal(residual[:10], values[:10])


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("size", [1, 3, 63, 65])
def test_the_numbers_of_a_block_that_is_not_full_arrive_as_soon_as_others(bits, size):
    values = np.full(size, -2.0, dtype=np.float32)

    back = there_and_back(codec_of(bits), values, residual=np.zeros(size, dtype=np.float32))

    np.testing.assert_allclose(back, values, rtol=0.02)


@pytest.mark.parametrize("bits", WIDTHS)
@given(values=arrays(np.float32, 100, elements=NUMBERS))
@settings(max_examples=30, deadline=None)
def test_with_feedback_less_is_kept_back_than_went_in(bits, values):
    residual = np.zeros(100, dtype=np.float32)

    there_and_back(codec_of(bits), values, residual=residual)

    went_in = float(np.linalg.norm(values.astype(np.float64)))
    assert np.linalg.norm(residual.astype(np.float64)) <= went_in * 1.0001


def test_four_bits_are_fine_where_numbers_are_small():
    values = np.full(64, 0.02, dtype=np.float32)
    values[0] = 1.0

    back = there_and_back(codec_of(4), values, residual=np.zeros(64, dtype=np.float32))

    np.testing.assert_allclose(back, values, rtol=0.03)


def test_bfloat16_keeps_what_is_no_number_and_never_makes_one_infinite():
    largest = np.finfo(np.float32).max
    values = np.array([np.inf, -np.inf, np.nan, largest, -largest, 0.0, -0.0], dtype=np.float32)

    back = there_and_back(codec_of(16), values, seed=5)

    assert list(np.isinf(back)) == [True, True, False, False, False, False, False]
    assert np.isnan(back[2])
    assert np.abs(back[3] / largest - 1) < 2**-7
    assert (back[5:] == 0).all()


def test_top_k_sends_the_largest_and_keeps_the_others():
    values = np.array([0.1, -8.0, 0.2, 3.0, -0.3, 5.0], dtype=np.float32)
    residual = np.zeros(6, dtype=np.float32)

    back = there_and_back(TopK(0.5), values, residual=residual)

    np.testing.assert_array_equal(back, np.array([0, -8, 0, 3, 0, 5], dtype=np.float32))
    np.testing.assert_array_equal(residual, np.array([0.1, 0, 0.2, 0, -0.3, 0], dtype=np.float32))


@given(values=arrays(np.float32, st.integers(1, 400), elements=NUMBERS), part=st.floats(0.001, 1.0))
@settings(max_examples=60, deadline=None)
def test_top_k_leaves_out_none_that_is_much_larger_than_one_it_sends(values, part):
    codec = TopK(part)
    back = there_and_back(codec, values)

    sent = back != 0
    assert np.count_nonzero(sent) <= max(1, round(len(values) * part))
    np.testing.assert_array_equal(back[sent], values[sent])
    if sent.any() and not sent.all():
        assert np.abs(values[~sent]).max() <= np.abs(values[sent]).min() * (1 + 2**-6)


@pytest.mark.parametrize(("bits", "times"), [(16, 1.99), (8, 3.8), (4, 7.4), (2, 14.0), (1, 25.0)])
def test_payloads_are_as_small_as_their_width_says(bits, times):
    values = np.ones(1 << 16, dtype=np.float32)

    assert values.nbytes / pack(values, codec_of(bits)).nbytes > times


def test_the_same_seed_gives_the_same_payload_and_another_another():
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    codec = codec_of(4)

    assert (pack(values, codec, seed=7) == pack(values, codec, seed=7)).all()
    assert (pack(values, codec, seed=7) != pack(values, codec, seed=8)).any()
