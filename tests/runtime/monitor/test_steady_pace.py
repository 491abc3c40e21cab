"""How fast a run goes once it goes steadily, from reports with a clock that is handed in."""

from __future__ import annotations

import random

import pytest

from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.steady_pace import WARM_UP_STEPS, SteadyPace

BATCH = 100


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def report(step: int, state: str = "running") -> Report:
    return Report(
        state=state, generation=1, step=step, epoch=0, samples=BATCH * step, total_samples=10**9, samples_per_s=0.0,
        loss=0.5, auc=0.5, checkpoint_step=0, workers=(), servers=(), events=(), next_event=0,
    )  # fmt: skip


def paced(*steps_s: float) -> SteadyPace:
    """Return the pace of a run whose steps took so long, each reported."""
    clock = Clock()
    pace = SteadyPace(clock)
    pace.report(report(0))
    for number, step_s in enumerate(steps_s, 1):
        clock.now_s += step_s
        pace.report(report(number))
    return pace


def test_a_slow_start_is_left_out():
    pace = paced(9.0, 3.0, 3.0, *[0.1] * 60)

    assert pace.samples_per_s == pytest.approx(BATCH / 0.1)
    assert pace.spread == pytest.approx(0.0, abs=1e-9)
    assert pace.steps == 60


def test_one_stall_among_many_steps_does_not_count():
    assert paced(*[0.1] * 40, 5.0, *[0.1] * 40).samples_per_s == pytest.approx(BATCH / 0.1)


def test_of_few_steps_all_after_the_first_count():
    assert paced(4.0, 1.0, 2.0).seconds_per_sample == pytest.approx(3.0 / (2 * BATCH))
    assert paced(4.0).samples_per_s is None
    assert not paced(1.0, 1.0).is_warm
    assert paced(*[1.0] * (WARM_UP_STEPS + 1)).is_warm


def test_a_run_that_goes_back_is_counted_anew():
    clock = Clock()
    pace = SteadyPace(clock)
    for step in range(20):
        clock.now_s += 1.0
        pace.report(report(step))
    for step in range(5, 40):
        clock.now_s += 0.5
        pace.report(report(step))

    assert pace.samples_per_s == pytest.approx(BATCH / 0.5)


def test_reports_without_news_and_of_other_states_are_no_steps():
    clock = Clock()
    pace = SteadyPace(clock)
    for step in range(30):
        clock.now_s += 0.1
        pace.report(report(step))
        pace.report(report(step))
        pace.report(report(step + 500, state="starting"))

    assert pace.samples_per_s == pytest.approx(BATCH / 0.1)


def test_steps_that_go_up_and_down_have_a_spread():
    pace = paced(*[0.1] * 8, *([0.1] * 8 + [0.2] * 8) * 5)

    assert 0.05 < pace.spread < 0.5


@pytest.mark.parametrize("slow_steps", [5, 20, 60])
def test_a_slow_phase_at_the_start_is_left_out_however_many_steps_it_has(slow_steps: int):
    pace = paced(*[0.5] * slow_steps, *[0.1] * (8 * slow_steps + 60))

    assert pace.holds
    assert pace.samples_per_s == pytest.approx(BATCH / 0.1, rel=0.02)
    assert pace.error < 0.05


def test_a_run_that_still_gets_faster_does_not_hold_and_its_error_says_so():
    pace = paced(*[5.0 / (1 + number) for number in range(60)])

    assert not pace.holds
    assert pace.error > 0.05


def test_of_too_little_the_error_is_the_whole():
    assert paced(4.0, 1.0, 2.0).error == 1.0
    assert not paced(4.0, 1.0, 2.0).holds


@pytest.mark.parametrize(("quick", "slow"), [(20, 10), (7, 20), (30, 30)])
def test_slow_phases_that_come_back_are_part_of_the_pace(quick: int, slow: int):
    rounds = 6
    pace = paced(*([0.1] * quick + [0.4] * slow) * rounds)
    mean_s = (0.1 * quick + 0.4 * slow) / (quick + slow)

    assert pace.seconds_per_sample == pytest.approx(mean_s / BATCH, rel=0.12)
    assert abs(pace.seconds_per_sample * BATCH / mean_s - 1) <= pace.error + 0.02


def test_something_that_compiles_begins_a_warm_up_anew():
    clock = Clock()
    pace = SteadyPace(clock)
    for step in range(100):
        clock.now_s += 1.0 if step < 40 else 0.1
        pace.report(report(step))
        if step < 40 and step % 5 == 0:
            pace.begin_anew()

    assert pace.holds
    assert pace.samples_per_s == pytest.approx(BATCH / 0.1)


def test_noise_is_no_change_of_pace():
    draw = random.Random(4)
    pace = paced(*(0.1 * draw.uniform(0.7, 1.3) for _ in range(300)))

    assert pace.holds
    assert pace.samples_per_s == pytest.approx(BATCH / 0.1, rel=0.08)
