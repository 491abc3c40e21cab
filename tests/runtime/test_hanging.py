"""Workers whose computation hangs, though they show signs of life: their tasks are done by others, they start again."""

import pytest

from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_nothing_left, make_run, train


class HangOne:
    """Has one worker hang, now and then."""

    def __init__(self, path, times):
        """Leave a file that one of them takes away, and hangs; `over`: the last one has, and one was found."""
        self._path, self._left, self._next = path, times, 600
        self.over = path.with_name("over")

    def __call__(self, local, report):
        is_known = any("at the same thing for" in event for event in local.events)
        if is_known and not self._left and not self._path.exists():
            self.over.touch()
        if self._left and report.samples > self._next and not self._path.exists():
            self._path.touch()
            self._left -= 1
            self._next = report.samples + 600


def hanging_run(folder, hang, *, workers, **training):
    """Train the counting model while workers hang; return the run."""
    samples = 12_000
    run = make_run(
        model=slow_counting(0.002 * workers, hang_at=str(hang._path), until=hang.over), optimizer=PLAIN,
        reduction="sum", samples=samples, batch=60, micro_batch=20, servers=1, workers=workers, patience_s=1.0,
        checkpoint=RunSaving(every_s=1.0), **training,
    )  # fmt: skip
    local = train(run, folder, meanwhile=hang)
    assert_nothing_left(local)
    return local


@pytest.mark.parametrize(
    ("workers", "times", "training"),
    [
        (2, 1, {"mode": "sync"}),
        pytest.param(2, 2, {"mode": "sync"}, marks=pytest.mark.slow),
        pytest.param(1, 2, {"mode": "sync"}, marks=pytest.mark.slow),
        pytest.param(2, 2, {"mode": "sync", "dense": "ring"}, marks=pytest.mark.slow),
        pytest.param(3, 2, {"mode": "ssp"}, marks=pytest.mark.slow),
        pytest.param(2, 2, {"mode": "async"}, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_hangs_is_ended_and_every_sample_counts_once(tmp_path, workers, times, training):
    hang = HangOne(tmp_path / "hang", times=times)

    local = hanging_run(tmp_path / "run", hang, workers=workers, **training)

    taken = list(tmp_path.glob("hang.taken-*"))
    assert len(taken) == times, taken
    # Of the last one the others may have done all that was left before it was known to hang.
    assert any("at the same thing for" in event for event in local.events), local.events
    assert_each_sample_counts_once(tmp_path / "run")
