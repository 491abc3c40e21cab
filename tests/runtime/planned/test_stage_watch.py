"""Windows of steps, cut from reports."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.runtime.messages import Report
from dovetail.runtime.planned.stage_times import StageWatch


def make_report(step: int, /, **changes: Any) -> Report:
    """Return a report of a run of two stages that compute for 1 s and 3 s a step of 100 samples."""
    values: dict[str, Any] = {
        "state": "running", "generation": 1, "step": step, "epoch": 0, "samples": 100 * step, "total_samples": 10_000,
        "samples_per_s": 0.0, "loss": 0.0, "auc": 0.5, "checkpoint_step": 0, "workers": (), "servers": (), "events": (),
        "next_event": 0, "stages_s": (1.0 * step, 3.0 * step), "staged_samples": 100 * step,
    }  # fmt: skip
    return Report(**values | changes)


def test_a_window_is_whole_after_enough_steps_and_seconds():
    watch = StageWatch(steps=10, seconds=2.0)

    assert watch.add(make_report(0), 0.0) is None  # nothing is computed
    assert watch.add(make_report(1), 1.0) is None
    assert watch.add(make_report(4), 2.0) is None  # it begins here, warm
    assert watch.add(make_report(13), 5.0) is None
    window = watch.add(make_report(14), 6.0)

    assert window is not None
    assert (window.steps, window.samples, window.stages_s) == (10, 1000, (10.0, 30.0))
    assert window.samples_per_s == pytest.approx(250.0)
    assert watch.add(make_report(24), 6.5) is None  # the next is too short


@pytest.mark.parametrize("changes", [{"generation": 2}, {"step": 3}, {"staged_samples": 5}, {"stages_s": (1.0,)}])
def test_a_run_that_begins_anew_is_measured_anew(changes):
    watch = StageWatch(steps=10, seconds=0.0)
    watch.add(make_report(1), 0.5)
    watch.add(make_report(4), 1.0)

    assert watch.add(make_report(14, **changes), 2.0) is None


def test_a_run_that_is_not_running_is_not_measured():
    watch = StageWatch(steps=1, seconds=0.0)
    watch.add(make_report(1), 0.5)
    watch.add(make_report(4), 1.0)

    assert watch.add(make_report(14, state="saving"), 2.0) is None
    assert watch.add(make_report(14), 2.0) is not None
