"""A worker that joins a run that goes on already, as `dovetail join` starts it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.errors import SpecError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.join import join
from dovetail.runtime.launch.lock import owner_of
from dovetail.runtime.launch.prepare import prepare
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run, train

ROOT = Path(__file__).parent.parent.parent


def test_a_worker_that_joins_gets_a_share_and_every_sample_counts_once(tmp_path):
    run = make_run(model=slow_counting(0.004), optimizer=PLAIN, reduction="sum", workers=1, samples=4000)
    joined, shares = [], []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            start = "from dovetail.cli.main import main; main()"
            command = [sys.executable, "-c", start, "join", str(local.folder), "--name", "late"]
            joined.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        shares.extend(worker.share for worker in report.workers if worker.name == "late")

    train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=30)
    assert joined[0].returncode == 0, said
    assert "the run is over" in said
    assert max(shares) > 0.2
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_name_that_is_taken_is_refused(tmp_path):
    prepare(make_run(samples=400), tmp_path / "run")

    with pytest.raises(TrainingError, match="`worker-1` already"):
        join(tmp_path / "run", name="worker-1")


@pytest.mark.parametrize("name", ["coordinator", "launcher", "server-0", "server-9", ".", "..", "a/b"])
def test_the_name_of_another_process_or_folder_is_refused_and_leaves_no_key(tmp_path, name):
    prepare(make_run(samples=400), tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run" / "keys").iterdir())

    with pytest.raises(SpecError, match="worker has one called"):
        join(tmp_path / "run", name=name)

    assert sorted(path.name for path in (tmp_path / "run" / "keys").iterdir()) == before


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="is no run"):
        join(tmp_path)


@pytest.mark.slow
def test_a_worker_that_joined_ends_when_its_run_is_killed(tmp_path):
    # The launcher is killed, and everyone with it: nobody is left to tell the worker that joined.
    run = make_run(
        model=slow_counting(0.002), optimizer=PLAIN, reduction="sum", workers=2, samples=200_000, dense="ring"
    )
    prepare(run, tmp_path / "run")
    start = "from dovetail.runtime.launch.local import LocalRun; import sys, pathlib\n"
    start += "with LocalRun(pathlib.Path(sys.argv[1])) as local: local.wait()"
    launcher = subprocess.Popen([sys.executable, "-c", start, str(tmp_path / "run")], cwd=ROOT)
    try:
        while owner_of(tmp_path / "run") is None:
            assert launcher.poll() is None
            time.sleep(0.05)
        command = [sys.executable, "-c", "from dovetail.cli.main import main; main()", "join", str(tmp_path / "run")]
        joined = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while not (tmp_path / "run" / "keys" / f"joined-{joined.pid}.secret").exists():
            assert joined.poll() is None
            time.sleep(0.05)
        time.sleep(2.0)  # to where rings form
    finally:
        launcher.kill()
        launcher.wait()

    _, said = joined.communicate(timeout=40)

    assert joined.returncode == 1
    assert "error: the run ended" in said
    assert "hint: go on with: dovetail train --resume" in said
    assert "Traceback" not in said
