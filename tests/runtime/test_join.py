"""A worker that joins a run that goes on already, as `dovetail join` starts it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import SpecError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.join import join
from dovetail.runtime.prepare.lock import owner_of
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.prepare.source_fingerprint import source_fingerprint, unlike
from dovetail.spec.run import RunData, RunModel
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import clicks, make_run, train

ROOT = Path(__file__).parent.parent.parent


def start_join(folder, *words, cwd=ROOT, **environment):
    """Start `dovetail join` as users do."""
    command = [sys.executable, "-c", "from dovetail.cli.main import main; main()", "join", str(folder), *words]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command, cwd=cwd, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths, **environment}
    )


def test_a_worker_that_joins_gets_a_share_and_every_sample_counts_once(tmp_path):
    seen = tmp_path / "seen"
    model = slow_counting(0.004, until=seen)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=30_000)
    joined, shares = [], []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            joined.append(start_join(local.folder, "--name", "late"))
        shares.extend(worker.share for worker in report.workers if worker.name == "late")
        if max(shares, default=0.0) > 0.2:
            seen.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=150)
    assert joined[0].returncode == 0, said
    assert "the run is over" in said
    assert max(shares) > 0.2
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "sync"},
        pytest.param({"dense": "ring"}, marks=pytest.mark.slow),
        pytest.param({"mode": "ssp"}, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_on_a_joined_worker_ends_it_at_once_and_others_do_its_tasks(tmp_path, mode):
    gone = tmp_path / "gone"
    model = slow_counting(0.004, until=gone)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=30_000, **mode)
    joined, told = [], []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            joined.append(start_join(local.folder, "--name", "late"))
        if not told and any(worker.name == "late" and worker.samples for worker in report.workers):
            joined[0].send_signal(signal.SIGINT)
            told.append(report.step)
        if any("late is lost: it leaves" in event for event in report.events):
            gone.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=150)
    assert joined[0].returncode == 0, said
    assert "left the run" in said
    assert told
    assert gone.exists()  # nobody waited for its silence
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_joined_worker_that_fails_is_alone_with_it(tmp_path):
    gone = tmp_path / "gone"
    model = RunModel(name="tests.runtime.failing:fails_where_told", options={"pause_s": 0.004, "until": str(gone)})
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=30_000)
    joined, events = [], []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            joined.append(start_join(local.folder, "--name", "late", DOVETAIL_TEST_FAILS="1"))
        events.extend(report.events)
        if any("late is lost" in event for event in events):
            gone.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=150)
    assert joined[0].returncode == 1
    assert "error: RuntimeError: told to fail" in said
    assert any("late is lost: RuntimeError: told to fail" in event for event in events)
    assert_each_sample_counts_once(tmp_path / "run")


def write_rows(path, num_rows):
    """Write a CSV of so many samples."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("label,price,colour\n" + "".join(f"{i % 2},{i},c{i % 7}\n" for i in range(num_rows)))


def test_a_joiner_with_a_shorter_file_is_refused_with_the_difference_and_the_run_goes_on(tmp_path, monkeypatch):
    write_rows(tmp_path / "here" / "rows.csv", 8000)
    write_rows(tmp_path / "there" / "rows.csv", 1000)
    data = RunData(name="csv", options={"path": "rows.csv", "dense": ["price"], "slots": ["colour"], "cache": False})
    over = tmp_path / "over"
    run = msgspec.structs.replace(
        make_run(model=slow_counting(0.01, until=over), optimizer=PLAIN, reduction="sum", workers=1), data=data
    )
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    joined = []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            joined.append(start_join(local.folder, cwd=tmp_path / "there"))
        elif joined and joined[0].poll() is not None:
            over.touch()

    local = train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=150)
    assert joined[0].returncode == 1
    assert "error: the data have 1,000 samples here, and 8,000 in the run" in said
    assert local.report.state == "done"
    assert local.report.samples == 8000


def test_joining_a_run_that_is_over_is_refused_at_once(tmp_path):
    train(make_run(samples=400), tmp_path / "run")

    with pytest.raises(TrainingError, match="is over"):
        join(tmp_path / "run")


def test_joining_by_a_copy_of_the_folder_is_refused(tmp_path):
    over = tmp_path / "over"
    model = slow_counting(0.004, until=over)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=30_000)
    joined = []

    def meanwhile(local, report):
        if report.step >= 2 and not joined:
            shutil.copytree(local.folder, tmp_path / "copy")
            joined.append(start_join(tmp_path / "copy"))
        elif joined and joined[0].poll() is not None:
            over.touch()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    _, said = joined[0].communicate(timeout=150)
    assert joined[0].returncode == 1
    assert "does not answer to the keys" in said
    assert not list((tmp_path / "copy" / "keys").glob("joins-*"))


def test_a_run_that_never_began_is_refused_at_once(tmp_path):
    prepare(make_run(samples=400), tmp_path / "run")

    with pytest.raises(TrainingError, match="is not under way: nobody listens"):
        join(tmp_path / "run")


def test_an_address_that_nobody_listens_at_is_said(tmp_path):
    prepare(make_run(samples=400), tmp_path / "run")

    with pytest.raises(TrainingError, match=r"is not under way: nobody listens at tcp://127\.0\.0\.1:\d+") as caught:
        join(tmp_path / "run", share_host=False)

    assert "network.address" in caught.value.hint


def test_a_model_of_another_shape_is_refused_with_the_difference(tmp_path):
    from dovetail.runtime.launch.join import _check_same

    blueprint = prepare(make_run(samples=400), tmp_path / "run")
    other = msgspec.structs.replace(
        blueprint.run, model=RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 4, "hidden": [16, 9]})
    )

    with pytest.raises(TrainingError, match=r"`layers\.fc2\.weight` is 9 x 16 here, and 8 x 16 in the run"):
        _check_same(msgspec.structs.replace(blueprint, run=other), clicks(num_samples=400), None)


def test_data_of_the_same_size_that_are_others_are_told_apart():
    run = make_run(samples=400)
    one, same, other = (source_fingerprint(run, clicks(num_samples=400, seed=seed), 400) for seed in (0, 0, 1))

    assert list(unlike(one, same)) == []
    assert [words.partition(":")[0] for words in unlike(one, other)] == ["the data are as many here, but other ones"]


def test_code_that_changed_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_model.py").write_text("def build():\n    return None\n")
    run = make_run(model=RunModel(name="changing_model:build"))
    before = source_fingerprint(run, clicks(num_samples=400), 400)
    (tmp_path / "changing_model.py").write_text("def build():\n    return 1\n")

    after = source_fingerprint(run, clicks(num_samples=400), 400)

    assert list(unlike(before, after)) == ["the file that `changing_model:build` is in is another one here"]


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

    _, said = joined.communicate(timeout=100)

    assert joined.returncode == 1
    assert "error: the run ended" in said
    assert "hint: go on with: dovetail train --resume" in said
    assert "Traceback" not in said


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is CUDA")
def test_a_device_that_is_not_there_is_found_before_anything_starts(tmp_path):
    from dovetail.spec.run import RunWorker

    with pytest.raises(TrainingError, match='device = "cuda" of worker `gpu`: PyTorch finds no CUDA'):
        prepare(make_run(workers=[RunWorker(name="gpu", device="cuda")]), tmp_path / "run")

    assert not (tmp_path / "run").exists()


def test_a_blueprint_says_what_the_run_is_known_by(tmp_path):
    prepare(make_run(samples=400), tmp_path / "run")

    known = Blueprint.read(tmp_path / "run").looks

    assert (known.num_samples, len(known.numbers), len(known.slots)) == (400, 3, 4)
