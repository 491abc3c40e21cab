"""What is shown while a run goes, and how it is stopped."""

import io
import os
import signal

import pytest
from rich.console import Console

from dovetail.cli.run_file import find_run
from dovetail.errors import SpecError
from dovetail.orchestrate.run_files import alike_workers, lock_free_folder
from dovetail.runtime.launch.stopping import Stopping
from dovetail.runtime.messages import Report, WorkerStatus
from dovetail.runtime.monitor.live import View, plain_line
from dovetail.spec.run import Run, RunModel, RunWorker


def make_report(**changes):
    workers = (
        WorkerStatus(name="fast", state="working", share=0.75, samples_per_s=3000.0, idle=0.02, samples=750),
        WorkerStatus(name="slow", state="away", share=0.25, samples_per_s=1000.0, idle=0.5, samples=250),
    )
    values = {
        "state": "running", "generation": 1, "step": 10, "epoch": 0, "samples": 1000, "total_samples": 4000,
        "samples_per_s": 1500.0, "loss": 0.5, "auc": 0.75, "checkpoint_step": 0, "workers": workers,
        "servers": ("server-0",), "next_event": 1,
        "events": ("slow is lost: killed by SIGKILL; its tasks go to others",),
    }  # fmt: skip
    return Report(**{**values, **changes})


def test_a_line_has_progress_speed_quality_shares_and_time_left():
    # 3000 samples are left at 1500 a second.
    assert plain_line(make_report()) == (
        " 25%  step 10  1.5 k samples/s  loss 0.5000  AUC 0.7500  fast 75% (idle 2%), slow away  2 s left"
    )


def test_what_is_not_known_yet_is_left_out():
    line = plain_line(make_report(samples_per_s=0.0, loss=float("nan"), auc=float("nan")))

    assert line == " 25%  step 10  0 samples/s  fast 75% (idle 2%), slow away"


def test_without_a_terminal_events_and_lines_go_to_stderr_and_not_too_often(capsys):
    with View("ctr-dnn", epochs=1) as view:
        view.show(make_report())
        view.show(make_report(events=()))

    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == ["slow is lost: killed by SIGKILL; its tasks go to others", plain_line(make_report())]


def test_on_a_terminal_there_is_a_table_of_workers_and_the_last_events():
    view = View("ctr-dnn · sync", epochs=2)
    for number in range(9):
        view.tell(f"checkpoint of step {number} is kept")
    screen = Console(file=io.StringIO(), width=100)

    screen.print(view._drawn(make_report()))

    text = screen.file.getvalue()
    assert "ctr-dnn · sync   running   epoch 1/2   step 10" in text
    assert "25%" in text
    assert "2 s left" in text
    assert "away" in text
    assert "servers server-0" in text
    assert "step 8 is kept" in text
    assert "step 2 is kept" not in text, "only the last events are shown"


def test_the_table_says_which_part_of_its_rows_a_worker_kept_where_one_keeps_any():
    keeps = WorkerStatus(
        name="keeps", state="working", share=1.0, samples_per_s=9.0, idle=0.0, samples=9, kept=0.5125
    )  # fmt: skip
    texts = []
    for workers in (make_report().workers, (*make_report().workers, keeps)):
        screen = Console(file=io.StringIO(), width=100)
        screen.print(View("ctr-dnn", epochs=1)._drawn(make_report(workers=workers)))
        texts.append(screen.file.getvalue())

    assert ["rows kept" in text for text in texts] == [False, True]
    assert "51.2%" in texts[1]


def test_the_first_signal_asks_and_the_second_ends_and_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    told = []
    with Stopping(told.append) as stopping:
        assert not stopping.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    assert told == ["SIGTERM: keeping a checkpoint, then stopping; once more ends at once"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_so_many_workers_are_like_the_files_where_it_has_one_kind():
    one = Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name="core", threads=2, share=0.5)])
    two = Run(model=RunModel(name="ctr-dnn"), workers=[RunWorker(name="a"), RunWorker(name="b")])

    assert alike_workers(one, 3) == [
        {
            "name": "core",
            "threads": 2,
            "device": "cpu",
            "stage": 0,
            "precision": "float32",
            "cache_bytes": 0,
            "count": 3,
        }
    ]
    assert alike_workers(two, 3) == [{"name": "worker", "count": 3}]


def test_a_folder_without_a_name_is_the_first_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(model=RunModel(name="my.package:make_model"))
    with lock_free_folder(run) as lock:
        assert str(lock.folder) == "runs/make_model-1"
        (lock.folder / "blueprint.json").touch()  # whatever it says: somebody's run

    with lock_free_folder(run) as lock:
        assert str(lock.folder) == "runs/make_model-2"
    assert not lock.folder.exists()


def test_a_models_name_is_a_run_on_data_that_it_can_learn():
    run = find_run("dlrm", None, {"training.batch": 8}, 3)

    assert (run.model.name, run.data.name, run.data.options["truth"]) == ("dlrm", "clicks", "dot")
    assert (run.training.batch, [name for name, _ in run.each_worker()]) == (8, ["worker-0", "worker-1", "worker-2"])
    with pytest.raises(SpecError, match="neither a run file nor a model"):
        find_run("dlmr", None, {}, None)


def test_other_data_for_a_model_have_none_of_the_options_of_its_own():
    run = find_run("ctr-dnn", None, {"data.options.path": "day.csv"}, None, data="csv")

    assert run.data.name == "csv"
    assert run.data.options == {"path": "day.csv"}
    assert run.data.samples is None
    assert find_run("ctr-dnn", None, {}, None, data="clicks") == find_run("ctr-dnn", None, {}, None)
