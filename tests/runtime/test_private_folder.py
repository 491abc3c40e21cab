"""A run's sockets and shared memory outlive no run, and no other run takes them away while it lives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.errors import DovetailError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.private_folder import (
    hold,
    make_private_folder,
    remove_private_folder,
    sweep_private_folders,
)
from tests.runtime.runs import make_run, train
from tests.waiting import wait_until

MAKE = "import sys, pathlib; from dovetail.runtime.private_folder import *; f = make_private_folder(pathlib.Path({!r}))"


def start_another(parent: Path, then: str = "", *before: str) -> subprocess.CompletedProcess[str]:
    """Have another process make a folder beside ours, and end."""
    program = MAKE.format(str(parent)) + f"; {then or 'remove_private_folder(f)'}"
    return subprocess.run([*before, sys.executable, "-c", program], check=False, capture_output=True, text=True)


def test_a_folder_of_a_process_that_was_killed_is_removed_at_the_next_start(tmp_path):
    killed = start_another(tmp_path, "import os; (f / 'x').touch(); os.kill(os.getpid(), 9)")
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()

    folder = make_private_folder(tmp_path)

    assert not left.exists()
    assert folder.stat().st_mode & 0o777 == 0o700
    remove_private_folder(folder)


def test_a_folder_that_a_process_of_the_run_still_holds_is_left_alone(tmp_path):
    program = MAKE.format(str(tmp_path)) + "; print(f, flush=True); sys.stdin.read()"
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    folder = Path(launcher.stdout.readline().strip())
    assert hold(folder)
    launcher.kill()
    launcher.communicate()

    assert start_another(tmp_path).returncode == 0
    assert folder.exists()
    remove_private_folder(folder)


def can_unshare() -> bool:
    """Say whether processes can be given numbers of their own, as a container does."""
    if shutil.which("unshare") is None:
        return False
    trial = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False, capture_output=True)
    return trial.returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="no new process namespaces here")
def test_a_start_in_a_container_leaves_living_runs_alone(tmp_path):
    folder = make_private_folder(tmp_path)

    done = start_another(tmp_path, "", "unshare", "--pid", "--fork", "--mount-proc")

    assert done.returncode == 0, done.stderr
    assert folder.exists()
    remove_private_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_what_was_removed_cannot_be_held(tmp_path):
    folder = make_private_folder(tmp_path)
    assert sweep_private_folders(tmp_path) == []
    remove_private_folder(folder)

    assert not hold(folder)


def test_a_run_that_cannot_be_prepared_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.runtime.private_folder._place", lambda: tmp_path)
    run = make_run()
    network = msgspec.structs.replace(run.network, address="192.0.2.1")  # an address that no machine has

    with pytest.raises(DovetailError, match=r"nothing can listen on 192\.0\.2\.1"):
        prepare(msgspec.structs.replace(run, network=network), tmp_path / "run")

    assert list(tmp_path.glob("dovetail-*")) == []


def test_a_run_without_shared_memory_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.runtime.private_folder._place", lambda: tmp_path)
    run = make_run(samples=400)
    network = msgspec.structs.replace(run.network, shared_memory=False)
    train(msgspec.structs.replace(run, network=network), tmp_path / "run")

    assert list(tmp_path.glob("dovetail-*")) == []


START = """
import sys, pathlib
import dovetail.runtime.private_folder as places
places._place = lambda: pathlib.Path(sys.argv[1])
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from tests.runtime.counting import PLAIN, slow_counting
from tests.runtime.runs import make_run
folder = pathlib.Path(sys.argv[2])
prepare(make_run(model=slow_counting(0.01), optimizer=PLAIN, reduction="sum", samples=20_000), folder)
with LocalRun(folder) as local:
    local.wait()
"""


def test_what_a_killed_launcher_leaves_is_swept_at_the_next_start(tmp_path, request):
    memory = Path(tempfile.mkdtemp(prefix="dt-"))  # a socket's path may have 107 bytes, and tmp_path is long
    request.addfinalizer(lambda: shutil.rmtree(memory, ignore_errors=True))
    launcher = subprocess.Popen(
        [sys.executable, "-c", START, str(memory), str(tmp_path / "run")], cwd=Path(__file__).parents[2]
    )
    wait_until(lambda: list(memory.glob("*/*.lane")), "no shared memory")
    family = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()
    launcher.wait()
    psutil.wait_procs(family, timeout=60)

    other = make_private_folder(memory)

    assert list(memory.iterdir()) == [other]
    remove_private_folder(other)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root")
def test_a_run_starts_wherever_its_temporary_files_go(tmp_path):
    """Without shared memory, and with a TMPDIR that is longer than a socket's name may be."""
    long = tmp_path / ("x" * 56)
    long.mkdir()
    program = (
        "import pathlib, sys; from tests.runtime.runs import make_run, train; "
        "train(make_run(samples=400), pathlib.Path(sys.argv[1])); print('trained')"
    )
    inside = 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", program, str(tmp_path / "run")],
        env={**os.environ, "TMPDIR": str(long)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
