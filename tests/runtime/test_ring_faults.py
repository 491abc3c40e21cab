"""A ring whose members, servers and coordinator die at bad moments: dense parameters hold every step once."""

import random
import signal
import time

import pytest

from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_nothing_left, kill, make_run, train


class Strike:
    """Kills several processes at once, or within moments, and again once the run goes on."""

    def __init__(self, *groups, seed=0, over=None):
        """Take names to be killed together, group after group; the file `over` is made after the last."""
        self._left, self._random, self._over = list(groups), random.Random(seed), over
        self._samples = 200

    def __call__(self, local, report):
        if not self._left or report.state != "running" or report.samples <= self._samples:
            return
        for name in self._left.pop(0):
            kill(local, name, signal.SIGKILL)
            time.sleep(self._random.choice([0.0, 0.0, 0.05, 0.3]))
        self._samples = report.samples + 200
        if not self._left and self._over is not None:
            self._over.touch()


def struck_run(folder, strike, *, workers=3, seconds=8.0, samples=3000, **how):
    """Train the counting model in a ring under strikes."""
    run = make_run(
        model=slow_counting(seconds * workers / samples, until=strike._over), optimizer=PLAIN, reduction="sum",
        dense="ring", samples=samples, batch=60, servers=2, workers=workers, patience_s=3.0, **how,
    )  # fmt: skip
    local = train(run, folder, meanwhile=strike, timeout_s=150)
    assert not strike._left, local.events
    assert_nothing_left(local)
    return local


def test_two_members_that_die_together_leave_the_right_parameters(tmp_path):
    strike = Strike(["worker-0", "worker-2"], seed=1, over=tmp_path / "over")

    struck_run(tmp_path / "run", strike, seconds=40, samples=6000, checkpoint=RunSaving(every_s=0.7))

    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_with_whom_a_ring_counts_every_step_once(tmp_path, seed):
    draw = random.Random(seed)
    names = ["worker-0", "worker-1", "worker-2", "server-0", "server-1", "coordinator"]
    strike = Strike(*(draw.sample(names, draw.randint(1, 3)) for _ in range(5)), seed=seed)

    struck_run(tmp_path / "run", strike, seconds=15, checkpoint=RunSaving(every_s=0.7))

    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
def test_a_coordinator_that_dies_costs_a_ring_no_checkpoint(tmp_path):
    strike = Strike(["coordinator"], ["coordinator"])

    local = struck_run(tmp_path / "run", strike, seconds=10)  # there is no checkpoint but the first

    events = " ".join(local.events)
    assert events.count("the coordinator came back at step") == 2
    assert "goes back to the checkpoint" not in events
    assert_each_sample_counts_once(tmp_path / "run")
