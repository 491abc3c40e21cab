"""All-reduce formulas against hand-made and simulated exchanges."""

import math

import pytest

from dovetail.cost.collective import (
    all_reduce_seconds,
    binary_blocks_seconds,
    halving_doubling_seconds,
    ring_all_reduce_seconds,
)
from dovetail.errors import DovetailError


def test_two_workers_exchange_the_whole_payload_once():
    # Two hops of half the payload each: one payload over the wire.
    assert ring_all_reduce_seconds(1e9, num_workers=2, byte_s=1e-9) == pytest.approx(1.0)


def test_one_worker_has_nobody_to_talk_to():
    for seconds in (ring_all_reduce_seconds, halving_doubling_seconds, binary_blocks_seconds):
        assert seconds(1e9, num_workers=1, byte_s=1e-9, latency_s=1.0, reduce_byte_s=1e-9) == 0.0


def test_a_ring_of_five_counts_every_hop():
    # 8 hops with 1 ms each; 2 * 4/5 of 100 bytes at 1 s/byte; 4/5 of 100 bytes added at 2 s/byte.
    seconds = ring_all_reduce_seconds(100, num_workers=5, byte_s=1.0, latency_s=1e-3, reduce_byte_s=2.0)

    assert seconds == pytest.approx(0.008 + 160 + 160)


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16, 64])
def test_halving_doubling_moves_a_rings_bytes_in_few_messages(num_workers):
    wire = {"num_workers": num_workers, "byte_s": 1e-9, "reduce_byte_s": 1e-10}
    same_bytes = ring_all_reduce_seconds(1e8, **wire)

    assert halving_doubling_seconds(1e8, **wire) == pytest.approx(same_bytes)
    with_latency = halving_doubling_seconds(1e8, latency_s=1.0, **wire)
    assert with_latency == pytest.approx(same_bytes + 2 * math.log2(num_workers))


def stepwise_halving_doubling(payload, num_workers, *, byte_s, latency_s, reduce_byte_s):
    """Walk through the steps: each swaps half of what is left, then they are undone without adding."""
    seconds, share = 0.0, payload
    while num_workers > 1:
        share, num_workers = share / 2, num_workers // 2
        seconds += 2 * (latency_s + share * byte_s) + share * reduce_byte_s
    return seconds


@pytest.mark.parametrize("num_workers", [2, 4, 8, 32])
def test_halving_doubling_equals_its_steps(num_workers):
    wire = {"byte_s": 3e-9, "latency_s": 2e-5, "reduce_byte_s": 1e-10}

    walked = stepwise_halving_doubling(5e7, num_workers, **wire)

    assert halving_doubling_seconds(5e7, num_workers=num_workers, **wire) == pytest.approx(walked)


def test_halving_doubling_refuses_what_is_no_power_of_two():
    with pytest.raises(DovetailError, match="power of two"):
        halving_doubling_seconds(1.0, num_workers=6, byte_s=1.0)


def test_binary_blocks_of_a_power_of_two_are_halving_doubling():
    wire = {"byte_s": 1e-9, "latency_s": 1e-5, "reduce_byte_s": 1e-10}

    assert binary_blocks_seconds(1e8, num_workers=8, **wire) == halving_doubling_seconds(1e8, num_workers=8, **wire)


def test_three_workers_are_a_block_of_two_and_a_block_of_one():
    # The pair halves and doubles: 2 messages, 2 * 1/2 n over the wire. The single sends its n to the two, 2 messages
    # and n bytes, and gets the same back; the two add n/2 each.
    seconds = binary_blocks_seconds(100, num_workers=3, byte_s=1.0, latency_s=1000.0, reduce_byte_s=0.01)

    assert seconds == pytest.approx((2 * 1000 + 100 + 0.5) + (4 * 1000 + 200 + 0.5))


@pytest.mark.parametrize("num_workers", [3, 5, 6, 7, 9, 11, 12, 13])
def test_other_counts_pay_more_messages_and_bytes_than_the_power_below(num_workers):
    below = 1 << (num_workers.bit_length() - 1)
    for wire in ({"byte_s": 1.0}, {"byte_s": 0.0, "latency_s": 1.0}):
        assert binary_blocks_seconds(1.0, num_workers=num_workers, **wire) > halving_doubling_seconds(
            1.0, num_workers=below, **wire
        )


def test_the_best_is_the_ring_for_large_payloads_and_blocks_for_small_ones():
    wire = {"num_workers": 12, "byte_s": 1e-9, "latency_s": 1e-4}
    for payload, winner in ((1e9, ring_all_reduce_seconds), (1e3, binary_blocks_seconds)):
        assert all_reduce_seconds(payload, **wire) == winner(payload, **wire)


def test_nobody_cannot_sum():
    with pytest.raises(DovetailError, match="0 workers"):
        all_reduce_seconds(1.0, num_workers=0, byte_s=1.0)
