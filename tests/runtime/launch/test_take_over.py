"""A run that goes on is taken over by another launcher: ready first, then the old one stops."""

import json
import os
import subprocess
import sys

import psutil

from dovetail.runtime.folder import present_in
from dovetail.runtime.prepare.lock import owner_of
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run
from tests.serve.daemons import DOVETAIL, PATHS, table_of
from tests.waiting import wait_until


def dovetail(*words, out):
    with out.open("ab") as file:
        return subprocess.Popen([*DOVETAIL, *words], stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": PATHS})


def test_a_run_is_taken_over_on_other_workers_and_every_sample_counts_once(tmp_path):
    over = tmp_path / "over"
    model = slow_counting(0.003, until=over)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=30_000)
    (tmp_path / "run.json").write_text(json.dumps(table_of(run)))
    folder, out = tmp_path / "run", tmp_path / "out"
    old = dovetail("train", str(tmp_path / "run.json"), "--out", str(folder), out=out)
    wait_until(lambda: present_in(folder) is not None and len(present_in(folder).workers) == 1, out.read_text)

    new = dovetail("train", "--resume", str(folder), "--take-over", "--workers", "4", out=out)

    assert old.wait(120) == 0, out.read_text()
    over.touch()
    assert new.wait(120) == 0, out.read_text()
    assert "keeps a checkpoint and ends" in out.read_text()
    assert_each_sample_counts_once(folder)
    assert owner_of(folder) is None


def test_taking_over_goes_with_a_run_to_go_on_with(tmp_path):
    done = subprocess.run(
        [*DOVETAIL, "train", "ctr-dnn", "--out", str(tmp_path / "x"), "--take-over"],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 2
    assert "--take-over goes with --resume" in done.stderr
    assert not (tmp_path / "x").exists()


def test_the_process_that_forks_others_ends_with_whoever_started_it():
    program = (
        "from dovetail.runtime.launch.fork_server import fork_server; fork_server().wait_until_ready(); "
        "print(fork_server().process.pid, flush=True); import os; os._exit(0)"
    )
    started = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    waiting = int(started.stdout)

    wait_until(lambda: not psutil.pid_exists(waiting), "it is still there")
