"""Runs that stand still as a whole, as by Ctrl-Z or on a laptop that sleeps: nobody takes the others for dead."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dovetail.runtime.clocks import AwakeClock
from tests.runtime.counting import assert_each_sample_counts_once
from tests.waiting import wait_until

START = """
import sys, pathlib
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, slow_counting
from tests.runtime.runs import make_run
folder = pathlib.Path(sys.argv[1])
run = make_run(
    model=slow_counting(0.01), optimizer=PLAIN, reduction="sum", samples=4000, batch=40, micro_batch=20,
    patience_s=4.0, checkpoint=RunSaving(every_steps=10),
)
prepare(run, folder)
with LocalRun(folder) as local:
    local.wait()
"""
LONGER_THAN_ANY_PATIENCE_S = 70.0


def test_time_that_a_process_slept_through_counts_as_a_second_at_most():
    moments = iter([100.0, 100.2, 100.5, 3700.5, 3700.75])
    clock = AwakeClock(lambda: next(moments))

    assert [round(clock.now(), 6) for _ in range(4)] == [0.2, 0.5, 1.5, 1.75]
    assert clock.last_s == pytest.approx(1.75)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("who", ["everyone", "launcher"])
def test_a_run_that_stood_still_for_longer_than_anyone_waits_goes_on_and_counts_every_sample_once(tmp_path, who):
    folder = tmp_path / "run"
    launcher = subprocess.Popen([sys.executable, "-c", START, str(folder)], cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: len(list(folder.glob("checkpoints/step-*[0-9]"))) > 1 or launcher.poll() is not None)
        assert launcher.poll() is None
        family = psutil.Process(launcher.pid).children(recursive=True) if who == "everyone" else []
        stopped = [launcher.pid, *(child.pid for child in family)]
        for process_id in stopped:
            os.kill(process_id, signal.SIGSTOP)
        time.sleep(LONGER_THAN_ANY_PATIENCE_S)
        for process_id in stopped:
            os.kill(process_id, signal.SIGCONT)

        assert launcher.wait(120) == 0
    finally:
        launcher.kill()
        launcher.wait()
    assert_each_sample_counts_once(folder)
