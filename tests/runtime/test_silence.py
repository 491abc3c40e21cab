"""Processes that fall silent, wake again, or die at bad moments: the run goes on, and nothing counts twice."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from dovetail.runtime.folder import SUMMARY
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_nothing_left, kill, make_run, train
from tests.waiting import wait_until

PATIENCE_S = 1.5


class Script:
    """Does things to a run one after the other, each when the run goes on well after the last."""

    def __init__(self, *steps):
        """Take functions of the run and its report; each returns True when it is done."""
        self._left = list(steps)
        self.samples = 0
        self._since_s = None

    @property
    def is_done(self):
        return not self._left

    def __call__(self, local, report):
        if report.state != "running" or report.samples <= self.samples:
            return
        self._since_s = self._since_s or time.monotonic()
        if self._left and time.monotonic() - self._since_s > 2.5:  # enough signs of life to know their rhythm
            self._left.pop(0)(local)
            self.samples, self._since_s = report.samples, None


def sleeping(name, seconds):
    """Return what stops a process for a while; nobody looks meanwhile, so that it wakes before it is ended."""

    def act(local):
        kill(local, name, signal.SIGSTOP)
        time.sleep(seconds)
        kill(local, name, signal.SIGCONT)

    return act


def stopped(name):
    """Return what stops a process for good."""
    return lambda local: kill(local, name, signal.SIGSTOP)


def all_workers_killed(local):
    """Kill all workers at once."""
    for name in local.children:
        if name.startswith("worker"):
            kill(local, name)


def killed_while_saving(local):
    """Kill a server as soon as a checkpoint is being written."""
    deadline_s = time.monotonic() + 60
    while not list(local.folder.glob("checkpoints/*.partial")) and time.monotonic() < deadline_s:
        time.sleep(0.0005)
    kill(local, "server-1")


def scripted_run(folder, script, mode, *, seconds=30.0, workers=2, **how):
    """Train the counting model while a script runs."""
    samples = 9000
    run = make_run(
        model=slow_counting(seconds * workers / samples), optimizer=PLAIN, reduction="sum", mode=mode,
        samples=samples, batch=60, servers=2, workers=workers, patience_s=PATIENCE_S, micro_batch=20,
        checkpoint=RunSaving(every_s=0.6), **how,
    )  # fmt: skip
    local = train(run, folder, meanwhile=script, timeout_s=150)
    assert script.is_done
    assert_nothing_left(local)
    return local


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_that_falls_silent_is_given_up_and_counts_nothing_twice_when_it_wakes(tmp_path, mode):
    script = Script(sleeping("worker-1", 3 * PATIENCE_S), stopped("worker-0"))

    local = scripted_run(tmp_path / "run", script, mode, seconds=15)

    events = " ".join(local.events)
    assert "worker-1 is lost: silent for" in events
    assert "worker-0 is lost: silent for" in events
    assert local.children["worker-0"].starts == 2  # it never woke, so it was ended and started again
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_servers_and_coordinators_that_sleep_count_nothing_twice_when_they_wake(tmp_path, mode):
    script = Script(
        sleeping("server-0", 3 * PATIENCE_S),
        sleeping("coordinator", 3 * PATIENCE_S),
        stopped("server-1"),
        killed_while_saving,
        all_workers_killed,
    )

    local = scripted_run(tmp_path / "run", script, mode)

    events = " ".join(local.events)
    assert "server-0 is lost: silent for" in events
    assert "server-1 is lost: silent for" in events
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_run_that_is_over_before_its_launcher_asks_is_told_by_the_coordinator_that_ran_it(tmp_path):
    run = make_run(samples=40, batch=20)
    prepare(run, tmp_path / "run")

    with LocalRun(tmp_path / "run") as local:
        wait_until((tmp_path / "run" / SUMMARY).exists, "the run is over")
        report = local.wait(timeout_s=100.0)

    assert (report.state, local.children["coordinator"].starts) == ("done", 1)


def test_a_launcher_that_dies_takes_its_processes_with_it(tmp_path):
    # The run is a child's child: the child is killed, and so nobody is there to end anything.
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    launcher = context.Process(target=launch_and_tell, args=(str(tmp_path / "run"), other))
    launcher.start()
    process_ids = pipe.recv()
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.join(60)

    deadline_s = time.monotonic() + 60
    while alive(process_ids) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert alive(process_ids) == []


def alive(process_ids):
    """Return the processes that live, zombies left out."""
    found = []
    for process_id in process_ids:
        try:
            if Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(process_id)
        except OSError:
            continue
    return found


def launch_and_tell(folder, pipe):
    """Start a run and tell the ids of its processes."""
    prepare(make_run(samples=100_000), Path(folder))
    with LocalRun(Path(folder)) as local:
        while (report := local.look()) is None or not report.samples:
            pass
        pipe.send([child.process_id for child in local.children.values()])
        local.wait()
