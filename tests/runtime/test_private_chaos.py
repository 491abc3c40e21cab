"""Whoever dies, and whenever: no step of a private run is forgotten, and none that is done again is paid twice."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.folder import JOURNAL
from dovetail.runtime.spending import Spending
from dovetail.spec.run import with_settings
from dovetail.spec.run_sections import RunOptimizer, RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.runs import assert_nothing_left, make_run, train

SGD = RunOptimizer(name="sgd", learning_rate=0.1)
STEPS = 120
DOVETAIL = (sys.executable, "-c", "from dovetail.cli.main import main; main()")


def run_file(folder: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(
        """
        model = { name = "ctr-dnn", options = { num_rows = 240, width = 4, hidden = [16, 8] } }
        training = { batch = 50, epochs = 3, seed = 3 }
        optimizer = { name = "sgd", learning_rate = 0.1 }
        privacy = { epsilon = 2.0, delta = 1e-5, clip = 1.0, accountant = "rdp" }
        checkpoint = { every_steps = 15 }
        [data]
        name = "clicks"
        options = { num_slots = 4, num_multi_valued = 1, num_dense = 3, rows_per_slot = 60, num_samples = 2000 }
        """
    )
    return path


def seen_in(folder: Path) -> dict[str, set[int]]:
    """Return which steps were taken, stream by stream."""
    found: dict[str, set[int]] = {}
    for line in (folder / "witness").read_text().splitlines():
        stream, step = line.split()
        found.setdefault(stream, set()).add(int(step))
    return found


def assert_none_is_forgotten(folder: Path) -> None:
    spent = {each.stream: each for each in Spending.read(folder / "run").streams}
    for stream, steps in seen_in(folder).items():
        assert spent[stream].first <= min(steps)
        assert max(steps) < spent[stream].last


def killed_at_random(folder: Path, words: list[str], draw: random.Random, *, most_s: float) -> bool:
    """Run the command line until it ends, or is killed a while after its first step; say whether it ended."""
    witness = folder / "witness"
    size = witness.stat().st_size if witness.exists() else 0
    command = [sys.executable, "-m", "tests.runtime.private_witness", str(witness), "train", *words]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + 120
        while running.poll() is None and time.monotonic() < deadline_s:
            if witness.exists() and witness.stat().st_size > size:
                break
            time.sleep(0.005)
        try:
            running.wait(draw.uniform(0.0, most_s))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
    finally:
        if running.poll() is None:
            running.kill()
        problem = running.communicate(timeout=60)[1]
    assert running.returncode in (0, -signal.SIGKILL), problem
    return running.returncode == 0


def many_kills(folder: Path, *, kills: int, seed: int, most_s: float, changes: bool) -> None:
    """Kill a run in one process at random moments, and have it go on, with other settings where those change."""
    draw, words = random.Random(seed), [str(run_file(folder)), "--out", str(folder / "run")]
    for number in range(kills):
        is_over = killed_at_random(folder, words, draw, most_s=most_s)
        assert_none_is_forgotten(folder)
        if is_over:
            break
        words = ["--resume", str(folder / "run")]
        if changes and draw.random() < 0.5:
            words += ["--set", f"privacy.clip={1.0 + number}", "--set", f"privacy.epsilon={3.0 + number}"]
    while not killed_at_random(folder, ["--resume", str(folder / "run")], draw, most_s=100.0):
        pass
    assert_none_is_forgotten(folder)


def test_a_run_in_one_process_that_is_killed_twice_forgets_no_step_and_pays_none_twice(tmp_path):
    many_kills(tmp_path, kills=2, seed=1, most_s=0.4, changes=False)

    spending = Spending.read(tmp_path / "run")
    assert len(spending.streams) == 1
    assert sum(each.steps for each in spending.steps) == STEPS
    assert len(seen_in(tmp_path)) == 1
    manifest = json.loads(max((tmp_path / "run" / "checkpoints").glob("*/manifest.json")).read_text())
    assert manifest["step"] == manifest["spending"]["streams"][0]["last"] == STEPS


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_killed_many_times_and_changed_in_between_pays_for_all_of_it(tmp_path, seed):
    many_kills(tmp_path, kills=12, seed=seed, most_s=0.3, changes=True)


# Over servers and workers.


def over_servers(**more):
    run = make_run(optimizer=SGD, servers=2, batch=50, epochs=3, checkpoint=RunSaving(every_s=0.7), patience_s=5.0)
    privacy = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "accountant": "rdp"}
    return with_settings(run, {"privacy": privacy, **more}, place="test")


def steps_spent(folder: Path) -> int:
    """Return the step up to which the stream of now has spent."""
    spending, private = Spending.read(folder), Blueprint.read(folder).private
    return spending.of(private.stream).last


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_processes_that_die_one_after_the_other_cost_no_step_and_hide_none(tmp_path, seed):
    folder = tmp_path / "run"
    chaos = Chaos(kills=10, seed=seed, pause_s=1.0, over=tmp_path / "over")
    told = []

    def meanwhile(local, report):
        told.append(report.step)
        assert report.step <= steps_spent(folder)
        chaos(local, report)

    local = train(over_servers(**{"training.epochs": 40}), folder, meanwhile=meanwhile, timeout_s=600)

    assert_nothing_left(local)
    assert len(chaos.killed) == 10
    assert max(told) == 40 * 40
    assert sum(each.steps for each in Spending.read(folder).steps) == 40 * 40


def decided_in(folder: Path) -> int:
    """Return how many steps the journal says count."""
    lines = (folder / JOURNAL).read_text().splitlines()[1:] if (folder / JOURNAL).exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    steps = [line["commit"]["step"] + 1 for line in found if "commit" in line]
    return max([*steps, *(line["start"]["step"] for line in found if "start" in line)], default=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", [False, True])
def test_a_run_over_servers_that_is_killed_as_a_whole_forgets_no_step(tmp_path, changes):
    draw, folder = random.Random(5), tmp_path / "run"
    path = run_file(tmp_path)
    words = [
        str(path),
        "--out",
        str(folder),
        "--workers",
        "2",
        "--set",
        "servers.count=2",
        "--set",
        "training.epochs=12",
    ]
    for number in range(6):
        running = subprocess.Popen([*DOVETAIL, "train", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = Spending.read(folder) if folder.exists() else None
        begun_s = time.monotonic()
        while running.poll() is None and time.monotonic() < begun_s + 120:
            if decided_in(folder) > (0 if before is None else max(each.last for each in before.streams) - 1):
                break
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 1.0))
        everyone = [*psutil.Process(running.pid).children(recursive=True)] if running.poll() is None else []
        running.kill()
        for child in everyone:
            child.kill()
        running.wait(60)
        psutil.wait_procs(everyone, timeout=60)

        assert decided_in(folder) <= steps_spent(folder)
        if before is not None:  # nothing that was known is forgotten
            now = {each.stream: each for each in Spending.read(folder).streams}
            assert all(now[each.stream].last >= each.last for each in before.streams)
        words = ["--resume", str(folder)]
        if changes:
            words += ["--set", f"privacy.clip={2.0 + number}", "--set", f"privacy.epsilon={3.0 + number}"]
    done = subprocess.run([*DOVETAIL, "train", "--resume", str(folder)], check=False, timeout=300)
    assert done.returncode == 0
    assert changes or sum(each.steps for each in Spending.read(folder).steps) == 12 * 40
