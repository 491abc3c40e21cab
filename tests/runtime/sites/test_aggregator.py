"""Which rounds make an exchange, by events; and how many steps rounds have."""

from __future__ import annotations

import pytest

from dovetail.runtime.sites.aggregator import FEWEST, Aggregation, BroughtRound, steps_of_a_round
from dovetail.runtime.sites.messages import RoundHead


def plain(number: int, *, last: bool = False) -> BroughtRound:
    return BroughtRound(RoundHead(site=0, round=number, step=number, samples=1, bits=32, last=last), ())


def test_an_exchange_waits_for_every_site_that_is_heard_of() -> None:
    aggregation = Aggregation(3, wait_s=10.0, now_s=0.0)
    assert aggregation.offer(0, plain(1))
    assert aggregation.offer(1, plain(1))
    assert aggregation.next_exchange(5.0) == {}
    aggregation.offer(2, plain(1))
    assert sorted(aggregation.next_exchange(6.0)) == [0, 1, 2]
    assert aggregation.next_exchange(6.0) == {}


def test_a_silent_site_is_left_out_after_a_while_and_takes_part_when_it_is_back() -> None:
    aggregation = Aggregation(2, wait_s=10.0, now_s=0.0)
    aggregation.offer(0, plain(1))
    assert aggregation.next_exchange(9.9) == {}
    assert aggregation.away(10.0) == [0, 1]
    aggregation.heard(0, 10.0)
    assert aggregation.away(10.0) == [1]
    assert sorted(aggregation.next_exchange(10.0)) == [0]
    aggregation.heard(1, 11.0)
    aggregation.offer(0, plain(2))
    assert aggregation.next_exchange(11.0) == {}
    aggregation.offer(1, plain(1))
    assert {site: each.head.round for site, each in aggregation.next_exchange(11.0).items()} == {0: 2, 1: 1}


def test_a_round_that_comes_twice_counts_once_and_rounds_count_in_order() -> None:
    aggregation = Aggregation(1, wait_s=10.0, now_s=0.0, applied={0: 4})
    assert not aggregation.offer(0, plain(4))
    assert aggregation.offer(0, plain(6))
    assert aggregation.next_exchange(0.0) == {}
    assert aggregation.latest(0) == 4
    assert aggregation.offer(0, plain(5))
    assert not aggregation.offer(0, plain(5))
    assert aggregation.latest(0) == 6
    assert [aggregation.next_exchange(0.0)[0].head.round for _ in range(2)] == [5, 6]


def test_it_is_over_when_all_have_brought_their_last_or_were_silent_for_long() -> None:
    aggregation = Aggregation(2, wait_s=10.0, now_s=0.0)
    aggregation.offer(0, plain(1, last=True))
    aggregation.offer(1, plain(1))
    aggregation.next_exchange(1.0)
    assert not aggregation.is_over(50.0, 100.0)
    assert aggregation.is_over(100.0, 100.0)
    aggregation.heard(1, 99.0)
    assert not aggregation.is_over(100.0, 100.0)
    aggregation.offer(1, plain(2, last=True))
    assert sorted(aggregation.next_exchange(100.0)) == [1]
    assert aggregation.is_over(100.0, 100.0)


def test_rounds_have_as_few_steps_as_hide_a_transfer() -> None:
    # Two seconds behind steps of 50 ms: 40 steps, and a fifth of the time to spare: 50.
    assert steps_of_a_round(40, transfer_s=2.0, step_s=0.05) == 50
    assert steps_of_a_round(16, transfer_s=2.0, step_s=0.05) == 32
    assert steps_of_a_round(200, transfer_s=2.0, step_s=0.05) == 100
    assert steps_of_a_round(5, transfer_s=0.001, step_s=0.05) == FEWEST
    assert steps_of_a_round(16, transfer_s=0.0, step_s=0.05) == 16


@pytest.mark.parametrize("step_s", [0.0, -1.0])
def test_rounds_stay_as_they_are_before_anything_is_measured(step_s: float) -> None:
    assert steps_of_a_round(16, transfer_s=1.0, step_s=step_s) == 16
