"""A sharded run whose workers die or hang goes back as a whole, and every sample counts once."""

import signal
from pathlib import Path

import pytest

from dovetail.runtime.errors import TrainingError
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_nothing_left, kill, last_state, make_run
from tests.runtime.trainer.sharded.runs import train_sharded

SAMPLES = 1500


def counting_run(*, workers=2, pause_s=0.0, until=None, options=None, **how):
    """Return a run of the model that counts, with a checkpoint every few steps."""
    model = slow_counting(pause_s, until=until, **(options or {}))
    saving = RunSaving(every_steps=5)
    how = {"samples": SAMPLES, "batch": 60, "patience_s": 2.0, "checkpoint": saving} | how
    return make_run(model=model, optimizer=PLAIN, reduction="sum", workers=workers, **how)


def test_workers_that_are_killed_cost_steps_and_no_sample(tmp_path):
    over = tmp_path / "over"
    names = ["worker-0", "worker-1", "worker-2"]
    run = counting_run(workers=3, pause_s=0.005, until=over)
    seen = []

    def meanwhile(processes, report):
        """Kill each of them in turn, every one in a generation of its own that has made a step."""
        if report.state == "running" and report.step > 2 and processes.generation == len(seen) < len(names):
            kill(processes, names[len(seen)])
            seen.append(names[len(seen)])
            if len(seen) == len(names):
                over.touch()

    ended = train_sharded(run, tmp_path / "run", meanwhile=meanwhile)

    events = [event for event in ended.events if "goes back" in event]
    assert [event.split(":")[0] for event in events] == [f"{name} died (killed by SIGKILL)" for name in names]
    assert_each_sample_counts_once(tmp_path / "run")
    assert_nothing_left(ended)


def test_a_worker_that_hangs_is_named_and_ended(tmp_path):
    hang = tmp_path / "hang"
    run = counting_run(pause_s=0.0005, options={"hang_at": str(hang)}, patience_s=0.5)

    def meanwhile(processes, report):
        if report.step >= 6 and processes.generation == 0 and not Path(f"{hang}.made").exists():
            Path(f"{hang}.made").touch()
            hang.touch()

    ended = train_sharded(run, tmp_path / "run", meanwhile=meanwhile)

    [event] = [event for event in ended.events if "goes back" in event]
    assert "alive, but at the same thing for" in event
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_worker_that_stands_still_is_named_and_ended(tmp_path):
    over = tmp_path / "over"
    run = counting_run(pause_s=0.01, until=over)

    def meanwhile(processes, report):
        if report.step >= 6 and not over.exists():
            over.touch()
            kill(processes, "worker-1", signal.SIGSTOP)

    ended = train_sharded(run, tmp_path / "run", meanwhile=meanwhile)

    [event] = [event for event in ended.events if "goes back" in event]
    assert event.startswith("worker-1 silent for")
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_run_without_restarts_ends_with_who_died_and_goes_on_later(tmp_path):
    over = tmp_path / "over"
    run = counting_run(pause_s=0.01, until=over, restarts=0)
    chaos = Chaos(kills=1, seed=1, names=["worker-1"], over=over)

    with pytest.raises(TrainingError, match=r"worker-1 died \(killed by SIGKILL\), and is not started") as caught:
        train_sharded(run, tmp_path / "run", meanwhile=chaos)
    assert "--resume" in caught.value.hint

    train_sharded(counting_run(pause_s=0.01, until=over, workers=3), tmp_path / "run", resume=True)
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_model_that_fails_ends_the_run_with_its_error(tmp_path):
    model = RunModel(name="tests.runtime.failing:failing_model", options={"how": "raises", "after": 300})

    with pytest.raises(TrainingError, match=r"worker-\d: ZeroDivisionError: the model is out of luck") as caught:
        train_sharded(make_run(model=model, workers=2), tmp_path / "run")

    assert "its traceback is in" in caught.value.hint


def test_a_run_that_is_stopped_keeps_what_it_has_and_goes_on(tmp_path):
    over = tmp_path / "over"
    run = counting_run(pause_s=0.01, until=over, checkpoint=RunSaving())

    train_sharded(run, tmp_path / "run", stop=lambda report: report is not None and report.step >= 3)

    stopped = last_state(tmp_path / "run").manifest
    assert 3 <= stopped.step < SAMPLES // 60
    over.touch()
    train_sharded(counting_run(pause_s=0.01, until=over, workers=3), tmp_path / "run", resume=True)
    assert_each_sample_counts_once(tmp_path / "run")
