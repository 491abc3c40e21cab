"""Which rounds make an exchange, by events; and how many steps rounds have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dovetail.runtime.sites.hub import Hub
from dovetail.runtime.sites.pace import FEWEST, steps_of_a_round


@dataclass(frozen=True)
class Plain:
    round: int
    last: bool = False


def test_an_exchange_waits_for_every_site_that_is_heard_of() -> None:
    hub: Hub[Plain] = Hub(3, wait_s=10.0, now_s=0.0)
    assert hub.offer(0, Plain(1))
    assert hub.offer(1, Plain(1))
    assert hub.next_exchange(5.0) == {}
    hub.offer(2, Plain(1))
    assert sorted(hub.next_exchange(6.0)) == [0, 1, 2]
    assert hub.next_exchange(6.0) == {}


def test_a_silent_site_is_left_out_after_a_while_and_takes_part_when_it_is_back() -> None:
    hub: Hub[Plain] = Hub(2, wait_s=10.0, now_s=0.0)
    hub.offer(0, Plain(1))
    assert hub.next_exchange(9.9) == {}
    assert hub.away(10.0) == [0, 1]
    hub.heard(0, 10.0)
    assert hub.away(10.0) == [1]
    assert sorted(hub.next_exchange(10.0)) == [0]
    hub.heard(1, 11.0)
    hub.offer(0, Plain(2))
    assert hub.next_exchange(11.0) == {}
    hub.offer(1, Plain(1))
    assert {site: each.round for site, each in hub.next_exchange(11.0).items()} == {0: 2, 1: 1}


def test_a_round_that_comes_twice_counts_once_and_rounds_count_in_order() -> None:
    hub: Hub[Plain] = Hub(1, wait_s=10.0, now_s=0.0, applied={0: 4})
    assert not hub.offer(0, Plain(4))
    assert hub.offer(0, Plain(6))
    assert hub.next_exchange(0.0) == {}
    assert hub.latest(0) == 4
    assert hub.offer(0, Plain(5))
    assert not hub.offer(0, Plain(5))
    assert hub.latest(0) == 6
    assert [hub.next_exchange(0.0)[0].round for _ in range(2)] == [5, 6]


def test_it_is_over_when_all_have_brought_their_last_or_were_silent_for_long() -> None:
    hub: Hub[Plain] = Hub(2, wait_s=10.0, now_s=0.0)
    hub.offer(0, Plain(1, last=True))
    hub.offer(1, Plain(1))
    hub.next_exchange(1.0)
    assert not hub.is_over(50.0, 100.0)
    assert hub.is_over(100.0, 100.0)
    hub.heard(1, 99.0)
    assert not hub.is_over(100.0, 100.0)
    hub.offer(1, Plain(2, last=True))
    assert sorted(hub.next_exchange(100.0)) == [1]
    assert hub.is_over(100.0, 100.0)


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
