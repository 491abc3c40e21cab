"""Widths by what is measured: on made-up links, whose seconds are known."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dovetail.codecs.chooser import MOST_NOISE, PATIENCE, WINDOW, Chooser, Decision, Observation

WIDTHS = (32, 16, 8, 4)
PLAIN_BYTES = 4_000_000


@dataclass
class MadeUpLink:
    """A link with a rate, a delay, and a worker that computes so long for a task."""

    bytes_per_s: float
    compute_s: float
    delay_s: float = 0.0
    noise_of: Callable[[int], float] = lambda bits: 0.0
    burst_bytes: int = 0
    """That go at once, as through a token bucket."""
    step_of: Callable[[int], float] = lambda bits: 0.0
    decisions: list[Decision] = field(default_factory=list)

    def run(self, chooser: Chooser, tasks: int) -> None:
        for _ in range(tasks):
            sent = PLAIN_BYTES * chooser.bits // 32
            decision = chooser.observe(
                Observation(
                    sent_bytes=sent,
                    plain_bytes=PLAIN_BYTES,
                    transfer_s=self.delay_s + max(0, sent - self.burst_bytes) / self.bytes_per_s,
                    compute_s=self.compute_s,
                    noise=self.noise_of(chooser.bits),
                    step_s=self.step_of(chooser.bits),
                )
            )
            if decision is not None:
                self.decisions.append(decision)


@pytest.mark.parametrize(
    ("bytes_per_s", "compute_s", "bits"),
    [
        (1.25e9, 0.1, 32),  # 3 ms of 100 that hide
        (40e6, 0.101, 32),  # 100 ms, just hidden
        (40e6, 0.09, 16),
        (40e6, 0.03, 8),
        (12.5e6, 0.05, 4),  # 320 ms plain, 40 in 4 bits
        (12.5e6, 0.001, 4),  # nothing hides: the narrowest
    ],
)
def test_the_widest_width_is_taken_for_which_transfers_hide(bytes_per_s, compute_s, bits):
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(bytes_per_s, compute_s)

    link.run(chooser, 20 * WINDOW)

    assert chooser.bits == bits


def test_a_fast_link_never_has_a_codec_and_nothing_is_said():
    chooser, link = Chooser(WIDTHS, hidden_part=0.25), MadeUpLink(1.25e9, 0.05)

    link.run(chooser, 50 * WINDOW)

    assert chooser.bits == 32
    assert link.decisions == []


def test_transfers_of_less_than_two_milliseconds_are_left_alone():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(4e9, 0.0001)

    link.run(chooser, 50 * WINDOW)

    assert chooser.bits == 32


def test_a_change_says_what_it_brought():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)

    link.run(chooser, 3 * WINDOW)

    change, measured = link.decisions
    assert (change.before, change.bits) == (32, 4)
    assert "320 ms" in change.reason
    assert (measured.before, measured.bits) == (4, 4)
    assert measured.gain == pytest.approx(8.0)


def test_a_link_whose_time_is_all_delay_goes_back_to_no_codec_and_waits():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(1e12, 0.001, delay_s=0.1)

    link.run(chooser, 3 * WINDOW)

    assert [(each.before, each.bits) for each in link.decisions] == [(32, 4), (4, 32)]
    assert link.decisions[-1].gain == pytest.approx(1.0, rel=0.01)
    link.run(chooser, PATIENCE * WINDOW // 2)
    assert len(link.decisions) == 2


def test_a_fast_link_whose_first_transfers_were_slow_gets_rid_of_its_codec():
    chooser, link = Chooser(WIDTHS, hidden_part=0.25), MadeUpLink(1.25e9, 0.05, delay_s=0.3)
    link.run(chooser, WINDOW)  # whatever had to be made ready
    assert chooser.bits == 4

    link.delay_s = 0.008
    link.run(chooser, 2 * PATIENCE * WINDOW)

    assert chooser.bits == 32
    num_decisions = len(link.decisions)
    link.run(chooser, 50 * WINDOW)
    assert len(link.decisions) == num_decisions


def test_a_slow_link_has_a_wider_width_ever_less_often():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.001)
    link.run(chooser, 4 * WINDOW)
    begun = len(link.decisions)

    link.run(chooser, 40 * PATIENCE * WINDOW)

    wider = [each for each in link.decisions[begun:] if each.bits > each.before]
    assert 2 <= len(wider) <= 6
    assert {(each.before, each.bits) for each in wider} == {(4, 8)}
    assert chooser.bits == 4


def test_a_link_that_gains_nothing_is_tried_ever_less():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(1e12, 0.001, delay_s=0.1)

    link.run(chooser, 40 * PATIENCE * WINDOW)

    tries = sum(each.bits < each.before for each in link.decisions)
    assert 2 <= tries <= 6  # after 1, 2, 4, 8, 16 times as long
    assert chooser.bits == 32


def test_the_width_goes_up_and_stays_where_codes_add_too_much_noise():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)
    link.run(chooser, 3 * WINDOW)
    assert chooser.bits == 4

    link.noise_of = {32: 0.0, 16: 0.0, 8: 0.001, 4: 0.032}.__getitem__
    link.run(chooser, WINDOW)
    assert chooser.bits == 8
    link.noise_of = lambda bits: 0.0
    link.run(chooser, 20 * WINDOW)

    assert chooser.bits == 8
    assert any("3.2% of what arrives is noise" in each.reason for each in link.decisions)


def test_a_width_that_was_too_noisy_is_no_measure_for_the_next():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)
    link.noise_of = {32: 0.0, 16: 0.0, 8: 0.001, 4: 0.032}.__getitem__

    link.run(chooser, 4 * WINDOW)

    assert [(each.before, each.bits) for each in link.decisions] == [(32, 4), (4, 8), (8, 8)]
    assert link.decisions[-1].gain == pytest.approx(4.0)  # of 32 bits, not of 4


def test_noise_that_does_no_harm_changes_nothing():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05, noise_of=lambda bits: MOST_NOISE)

    link.run(chooser, 20 * WINDOW)

    assert chooser.bits == 4


def test_where_every_width_is_noisy_there_is_no_codec_and_none_is_tried_again():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)
    link.noise_of = lambda bits: 0.5 if bits < 32 else 0.0

    link.run(chooser, 200 * WINDOW)

    assert chooser.bits == 32
    assert [each.bits for each in link.decisions if each.bits != each.before] == [4, 8, 16, 32]


def test_a_link_that_gets_faster_gets_its_bits_back():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)
    link.run(chooser, 5 * WINDOW)
    assert chooser.bits == 4

    link.bytes_per_s = 1.25e9
    link.run(chooser, 5 * WINDOW)

    assert chooser.bits == 32


def test_a_busy_server_is_not_taken_for_a_slow_link():
    chooser = Chooser(WIDTHS, hidden_part=0.25)

    for task in range(50 * WINDOW):  # two of three transfers wait for somebody
        seconds = 0.004 if task % 3 == 0 else 0.2
        seen = Observation(sent_bytes=PLAIN_BYTES, plain_bytes=PLAIN_BYTES, transfer_s=seconds, compute_s=0.05)
        assert chooser.observe(seen) is None


@pytest.mark.parametrize(("delay_s", "bits"), [(0.30, 4), (0.34, 32)])
def test_a_codec_stays_where_bytes_take_more_than_half_of_the_time(delay_s, bits):
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.001, delay_s=delay_s)  # bytes: 0.32 s

    link.run(chooser, 4 * WINDOW)

    assert chooser.bits == bits


def test_a_width_that_takes_longer_to_code_than_it_saves_is_not_even_tried():
    costs = {32: 0.0, 16: 1e-9, 8: 9e-9, 4: 9e-9}  # seconds a byte: 4 ms of a task in 16 bits, 36 ms in fewer
    chooser, link = Chooser(WIDTHS, hidden_part=1.0, coding_s=costs.__getitem__), MadeUpLink(200e6, 0.001)  # 20 ms

    link.run(chooser, 20 * WINDOW)

    assert {each.bits for each in link.decisions} == {16}


def test_a_link_goes_back_where_steps_are_slower_though_transfers_are_faster():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05)
    link.step_of = lambda bits: 0.4 if bits == 32 else 0.5

    link.run(chooser, 3 * WINDOW)

    assert [(each.before, each.bits) for each in link.decisions] == [(32, 4), (4, 32)]
    assert "steps take 500 ms, 400 ms at most before" in link.decisions[-1].reason


def test_steps_that_are_as_slow_as_before_prove_nothing():
    chooser, link = Chooser(WIDTHS, hidden_part=1.0), MadeUpLink(12.5e6, 0.05, step_of=lambda bits: 0.4)

    link.run(chooser, 3 * WINDOW)

    assert chooser.bits == 4


def test_a_wider_width_that_only_looked_as_if_it_would_hide_is_not_taken_over_and_over():
    chooser = Chooser(WIDTHS, hidden_part=1.0)
    link = MadeUpLink(12.5e6, 0.06, burst_bytes=1_500_000)  # 16 bits: 40 ms, 32 bits: 200 ms, 4 and 8: nothing

    link.run(chooser, 30 * WINDOW)

    wider = [each for each in link.decisions if each.bits > each.before]
    assert 1 <= len(wider) <= 3
    assert chooser.bits < 32


def test_quiet_is_a_link_without_a_codec_that_tries_nothing():
    quiet, slow = Chooser(WIDTHS, hidden_part=0.25), Chooser(WIDTHS, hidden_part=0.25)

    MadeUpLink(1.25e9, 0.05).run(quiet, 3 * WINDOW)
    MadeUpLink(12.5e6, 0.05).run(slow, 3 * WINDOW)

    assert (quiet.is_quiet, slow.is_quiet) == (True, False)


def test_a_link_that_is_faster_than_computing_is_looked_at_twice():
    chooser, link = Chooser(WIDTHS, hidden_part=0.25), MadeUpLink(1.25e9, 0.05, delay_s=0.02)
    link.run(chooser, WINDOW)
    link.delay_s = 0.0
    link.run(chooser, 2 * WINDOW)
    assert link.decisions == []

    link.delay_s, link.bytes_per_s = 0.0, 100e6  # 40 ms of 12 that hide
    link.run(chooser, 3 * WINDOW)

    assert chooser.bits == 8
