"""What goes wrong for good ends the run: with a word on who and why, and with nothing left behind."""

import pytest

from dovetail.errors import DovetailError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunModel
from tests.runtime.counting import COUNTING, PLAIN
from tests.runtime.failing import BrokenClicks
from tests.runtime.runs import DATA, assert_nothing_left, kill, log_of, make_run, train


def failing_run(folder, *, timeout_s=200.0, source=None, **how):
    """Train until it fails; return the error."""
    run = make_run(optimizer=PLAIN, reduction="sum", **how)
    prepare(run, folder, source=source)
    local = LocalRun(folder, source=source)
    with pytest.raises(TrainingError) as caught, local:
        local.wait(timeout_s=timeout_s)
    assert_nothing_left(local)
    assert isinstance(caught.value, DovetailError)
    assert caught.value.hint
    return caught.value


def model(how):
    """Return a model that fails in some way."""
    return RunModel(name="tests.runtime.failing:failing_model", options={"how": how})


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    error = failing_run(tmp_path / "run", model=model("nan"), workers=2)

    assert "the loss is nan on worker-" in str(error)
    assert "lower the learning rate" in error.hint


def test_a_model_that_raises_ends_the_run_with_what_it_said(tmp_path):
    error = failing_run(tmp_path / "run", model=model("raises"), workers=1, mode="async")

    assert "worker: ZeroDivisionError: the model is out of luck" in str(error)
    assert "in forward" in log_of(tmp_path / "run", "worker")  # the traceback


def test_data_that_cannot_be_read_end_the_run(tmp_path):
    source = BrokenClicks(1700, num_samples=2000, **DATA)

    error = failing_run(tmp_path / "run", model=COUNTING, source=source, workers=2)

    assert "worker-" in str(error)
    assert "sample 1700 is torn" in str(error)
    assert "mend the file" in error.hint


def test_a_worker_that_ends_once_too_often_ends_the_run_where_it_was_the_last(tmp_path):
    error = failing_run(tmp_path / "run", model=model("ends"), workers=1, restarts=1, samples=6000)

    assert "worker ended: exit status 7, and is not started again" in str(error)
    assert "worker.log" in error.hint
    assert "dovetail train --resume" in error.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("server-0", "server-0 ended: killed by SIGKILL, and is not started again"),
        ("coordinator", "the coordinator ended: killed by SIGKILL, and is not started again"),
    ],
)
def test_who_nobody_can_replace_ends_the_run(tmp_path, name, words):
    def meanwhile(local, report):
        if report.samples:
            kill(local, name)

    with pytest.raises(TrainingError, match=words):
        train(make_run(restarts=0, samples=100_000), tmp_path / "run", meanwhile=meanwhile)
