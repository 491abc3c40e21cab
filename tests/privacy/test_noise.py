"""The stream of noise: a cipher's, of the right distribution, and the same whoever draws which part of it."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from dovetail.privacy.noise import DenseNoise
from dovetail.privacy.normals import normals, pair_up

KEY = bytes(range(32))


def noise_of(size, *, step=1, first=0, key=KEY, stream="a", deviation=1.0):
    """Return the noise of some numbers in a step."""
    sums = np.zeros(size, dtype=np.float32)
    DenseNoise(key, stream=stream, deviation=deviation).add(sums, step=step, first=first)
    return sums


def test_pairs_are_those_of_aes_blocks_by_the_formula():
    counters = np.random.default_rng(0).integers(0, 2**64, (5000, 2), dtype=np.uint64)
    cipher = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    blocks = np.frombuffer(cipher.update(counters.astype("<u8").tobytes()), dtype="<u8").reshape(-1, 2) >> np.uint64(11)
    length, angle = np.sqrt(-2 * np.log((blocks[:, 0] + 1.0) / 2**53)), 2 * np.pi * blocks[:, 1] / 2**53

    expected = np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1).ravel()
    np.testing.assert_allclose(normals(KEY, counters), expected, rtol=0, atol=1e-14)


def test_the_most_extreme_blocks_give_numbers():
    ends = np.array([0, 2**11, 2**62, 2**63 - 1, 2**63, 3 * 2**62, 2**64 - 2**11, 2**64 - 1], dtype=np.uint64)
    bits = np.array([(one, other) for one in ends for other in ends])
    out = np.empty(2 * len(bits))
    pair_up(bits, np.empty(len(bits)), out)

    length = np.sqrt(-2 * np.log(((bits[:, 0] >> np.uint64(11)) + 1.0) / 2**53))
    angle = 2 * np.pi * (bits[:, 1] >> np.uint64(11)) / 2**53
    np.testing.assert_allclose(
        out.reshape(-1, 2), np.stack([length * np.cos(angle), length * np.sin(angle)], 1), atol=1e-14
    )


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
