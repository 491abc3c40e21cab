"""A run with few open files and a crowd of strangers at its ports keeps its checkpoints and goes on."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.folder import BLUEPRINT
from tests.runtime.counting import assert_each_sample_counts_once
from tests.transport.crowd import NEEDED_FILES, crowd_at
from tests.waiting import wait_until

START = """
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, slow_counting
from tests.runtime.runs import make_run, train
run = make_run(
    model=slow_counting(0.002, until=pathlib.Path(sys.argv[2])), optimizer=PLAIN, reduction="sum", samples=24_000,
    servers=2, batch=100, checkpoint=RunSaving(every_steps=10),
)
train(run, pathlib.Path(sys.argv[1]))
"""


@pytest.mark.skipif(
    0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NEEDED_FILES, reason="a crowd needs more open files"
)
def test_checkpoints_are_written_and_a_server_comes_back_under_a_crowd(tmp_path):
    folder, seen = tmp_path / "run", tmp_path / "seen"
    words = [sys.executable, "-c", START, str(folder), str(seen)]
    launcher = subprocess.Popen(words, cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: (folder / BLUEPRINT).exists() and newest(folder) > 0, "no checkpoint")
        blueprint = Blueprint.read(folder)
        with crowd_at([spec.address for spec in (blueprint.coordinator, *blueprint.servers)]):
            before = newest(folder)
            wait_until(lambda: newest(folder) >= before + 20, "no checkpoints under a crowd")
            server = next(each for each in family(launcher.pid) if each.name() == "server-1")
            server.send_signal(signal.SIGKILL)
            before = newest(folder)
            wait_until(lambda: newest(folder) >= before + 20, "no checkpoints after a server came back")
            seen.touch()
            assert launcher.wait(120) == 0
    finally:
        launcher.kill()
        launcher.wait()

    assert_each_sample_counts_once(folder)
    log = (folder / "logs" / "server-0.log").read_text()
    assert "have proven no key" in log
    assert "Too many open files" not in log


def family(process_id: int) -> list[psutil.Process]:
    return psutil.Process(process_id).children(recursive=True)


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint."""
    steps = [path.name.rpartition("-")[2] for path in (folder / "checkpoints").glob("*")]
    return max((int(step) for step in steps if step.isdigit()), default=-1)
