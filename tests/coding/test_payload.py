"""Payloads: whole, or refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.codecs.payload import CHECKSUM_AT, HEAD, checksum, pack, unpack
from dovetail.codecs.registry import codec_of
from dovetail.codecs.top_k import TopK
from dovetail.transport import WireError

CODECS = {**{str(bits): codec_of(bits) for bits in (16, 8, 4, 2, 1)}, "topk": TopK(0.2)}
NAMES = st.sampled_from(sorted(CODECS))


def payload_of(name: str, shape: tuple[int, ...] = (5, 9), **options: object) -> np.ndarray:
    values = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    return pack(values, CODECS[name], seed=1, **options)


@given(name=NAMES, shape=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_shapes_come_back(name, shape):
    expected = tuple(shape) if name == "topk" else None
    assert unpack(payload_of(name, tuple(shape)), expected).shape == tuple(shape)


@given(name=NAMES, at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_no_bit_can_be_turned_over_unseen(name, at, bit):
    payload = payload_of(name)
    payload[at % len(payload)] ^= 1 << bit

    with pytest.raises(WireError):
        unpack(payload)


@given(name=NAMES, keep=st.floats(0.0, 0.999))
@settings(max_examples=100, deadline=None)
def test_what_is_cut_off_is_refused(name, keep):
    payload = payload_of(name)

    with pytest.raises(WireError):
        unpack(payload[: int(len(payload) * keep)])


@given(name=NAMES, more=st.binary(min_size=1, max_size=64))
@settings(max_examples=50, deadline=None)
def test_what_is_too_long_is_refused(name, more):
    payload = np.concatenate([payload_of(name), np.frombuffer(more, dtype=np.uint8)])

    with pytest.raises(WireError):
        unpack(payload)


@given(garbage=st.binary(max_size=200), begins_well=st.booleans())
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused(garbage, begins_well):
    head = payload_of("8")[: HEAD.size].tobytes() if begins_well else b""

    with pytest.raises(WireError):
        unpack(np.frombuffer(head + garbage, dtype=np.uint8))


def signed(payload: np.ndarray) -> np.ndarray:
    """Return a payload that was tampered with, with the checksum that it should have."""
    payload[CHECKSUM_AT : CHECKSUM_AT + 8].view(np.uint64)[0] = checksum(payload.view(np.uint64))
    return payload


def test_a_few_bytes_that_claim_to_be_a_huge_array_are_refused_before_there_is_one():
    payload = pack(np.ones(10, dtype=np.float32), TopK(1e-12))
    payload[HEAD.size : HEAD.size + 8].view(np.int64)[0] = 1 << 31

    with pytest.raises(WireError, match="at most"):
        unpack(signed(payload))
    payload[HEAD.size : HEAD.size + 8].view(np.int64)[0] = 1 << 30
    with pytest.raises(WireError, match="known to nobody"):
        unpack(signed(payload))
    with pytest.raises(WireError, match=r"expected \[10\]"):
        unpack(payload, (10,))


def test_places_that_turn_around_after_the_largest_are_refused():
    payload = pack(np.arange(10, dtype=np.float32), TopK(0.3))
    places = payload[HEAD.size + 8 :].view(np.int32)[:3]
    places[:] = [2**31 - 1, -(2**31) + 5, 8]

    with pytest.raises(WireError, match="do not rise"):
        unpack(signed(payload), (10,))


def test_a_payload_of_a_codec_that_is_no_more_is_refused():
    payload = payload_of("4")
    payload[4] = 3

    with pytest.raises(WireError, match="codec 3"):
        unpack(signed(payload))


def test_another_shape_than_expected_is_refused():
    with pytest.raises(WireError, match=r"\[5, 9\], expected \[9, 5\]"):
        unpack(payload_of("8"), (9, 5))
    with pytest.raises(WireError, match=r"\[2\], expected \[3\]"):
        unpack(np.zeros(2, dtype=np.float32), (3,))


def test_another_type_than_numbers_or_bytes_is_refused():
    with pytest.raises(WireError, match="int64"):
        unpack(np.zeros(2, dtype=np.int64))


def test_plain_numbers_go_as_they_are():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    assert pack(values, None) is values
    assert unpack(values, (2, 3)) is values


@pytest.mark.parametrize("name", sorted(CODECS))
def test_exact_numbers_are_exact_and_keep_nothing_back(name):
    values = np.random.default_rng(5).standard_normal(300).astype(np.float32)
    values[17] = 1e9  # would drown its block
    exact, residual = np.array([0, 17, 299]), np.zeros(300, dtype=np.float32)

    back = unpack(pack(values, CODECS[name], residual=residual, exact=exact), (300,), exact=exact)

    np.testing.assert_array_equal(back[exact], values[exact])
    assert (residual[exact] == 0).all()
    assert np.abs(back).max() == np.float32(1e9)
    assert np.abs(np.delete(back + residual - values, exact)).max() < 1e-5


def test_a_payload_with_other_exact_numbers_than_expected_is_refused():
    payload = payload_of("8", exact=np.array([3]))

    with pytest.raises(WireError, match="1 exact numbers, expected 0"):
        unpack(payload)


def test_a_payload_that_lies_askew_in_memory_is_read_all_the_same():
    payload = payload_of("4")
    askew = np.empty(len(payload) + 3, dtype=np.uint8)[3:]
    askew[:] = payload

    np.testing.assert_array_equal(unpack(askew), unpack(payload))
