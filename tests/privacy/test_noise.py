"""The stream of noise: a cipher's, of the right distribution, and the same whoever draws which part of it."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from dovetail.privacy.chacha import fill_block, key_words
from dovetail.privacy.noise import DenseNoise

KEY = bytes(range(32))


def noise_of(size, *, step=1, first=0, key=KEY, stream="a", deviation=1.0):
    """Return the noise of some numbers in a step."""
    sums = np.zeros(size, dtype=np.float32)
    DenseNoise(key, stream=stream, deviation=deviation).add(sums, step=step, first=first)
    return sums


@pytest.mark.parametrize("counter", [(0, 0, 0, 0), (1, 2, 3, 4), (2**32 - 1, 7, 0, 2**32 - 1), (5, 2**31, 1, 2**24)])
def test_blocks_are_those_of_chacha20(counter):
    block = np.empty(16, dtype=np.uint32)
    fill_block(key_words(KEY), *(np.uint32(each) for each in counter), block)

    nonce = b"".join(each.to_bytes(4, "little") for each in counter)
    cipher = Cipher(algorithms.ChaCha20(KEY, nonce), mode=None).encryptor()
    assert block.astype("<u4").tobytes() == cipher.update(bytes(64))


def test_noise_is_normal_in_its_middle_and_in_its_tails():
    noise = noise_of(2_000_000).astype(np.float64)

    assert stats.kstest(noise, "norm").pvalue > 1e-4
    # Beyond 4 standard deviations lie 6.3e-5 of all numbers: 127 of these, give or take 11.
    assert 70 < int((np.abs(noise) > 4).sum()) < 190
    assert abs(stats.kurtosis(noise)) < 0.02
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.005


def test_a_number_has_the_same_noise_in_every_slice_of_the_vector():
    whole = noise_of(1000, step=9)

    for first, last in ((0, 1), (3, 8), (8, 16), (333, 1000), (999, 1000)):
        assert noise_of(last - first, step=9, first=first).tobytes() == whole[first:last].tobytes()


def test_steps_streams_and_keys_have_noise_of_their_own():
    one = noise_of(5000)

    for other in (noise_of(5000, step=2), noise_of(5000, stream="b"), noise_of(5000, key=bytes(32))):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    np.testing.assert_allclose(noise_of(100, deviation=0.25), one[:100] / 4, rtol=1e-6)
