"""Figures reach other programs: packages that stand in for those, with the same few functions, note what they get."""

import json
import struct
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from dovetail.runtime import MLflow, TrainingError, WandB, resume, train
from dovetail.runtime.figures import TensorBoardFile
from dovetail.runtime.finished.result import Validated, read_validated
from dovetail.runtime.monitor.loggers import Logging, flat
from dovetail.spec.run import Run, RunModel

WANDB = """
import json, pathlib
NOTED = []
class Run:
    def log(self, figures, step):
        NOTED.append(["log", figures, step])
    def finish(self):
        NOTED.append(["finish"])
def init(**settings):
    NOTED.append(["init", settings["project"], settings["name"], settings["config"]["training"]["epochs"]])
    return Run()
"""
MLFLOW = """
NOTED = []
def start_run(**settings):
    NOTED.append(["start_run", settings["run_name"]])
def log_params(settings):
    NOTED.append(["epochs", settings["training.epochs"]])
def log_metrics(figures, step):
    NOTED.append(["log", figures, step])
def end_run():
    NOTED.append(["end_run"])
"""
RUN = Run(model=RunModel(name="ctr-dnn"))
FOUND = Validated(step=7, samples=70, figures={"loss": 0.5, "auc": None}, is_best=True)


def noted_by(name, code, make, tmp_path, monkeypatch):
    """Return what a package that stands in for another notes of a short run."""
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    logging = Logging(make())
    logging.begin(tmp_path / "my-run", RUN)
    logging.validated(FOUND)
    logging.close()
    noted = json.loads(json.dumps(sys.modules[name].NOTED))
    monkeypatch.delitem(sys.modules, name)
    return noted


def test_weights_and_biases_gets_settings_and_figures(tmp_path, monkeypatch):
    noted = noted_by("wandb", WANDB, lambda: WandB(project="clicks"), tmp_path, monkeypatch)

    assert noted == [["init", "clicks", "my-run", 1], ["log", {"validation/loss": 0.5}, 7], ["finish"]]


def test_mlflow_gets_settings_and_figures(tmp_path, monkeypatch):
    noted = noted_by("mlflow", MLFLOW, MLflow, tmp_path, monkeypatch)

    assert noted == [["start_run", "my-run"], ["epochs", "1"], ["log", {"validation/loss": 0.5}, 7], ["end_run"]]


def events(folder):
    """Return the figures in the one file of a folder, by tag, as (step, value)."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), {}
    while data:
        (length,), data = struct.unpack("<Q", data[:8]), data[8:]
        assert struct.unpack("<I", data[:4])[0] == masked_crc32c(struct.pack("<Q", length))
        event = Event.FromString(data[4 : 4 + length])
        assert struct.unpack("<I", data[4 + length : 8 + length])[0] == masked_crc32c(data[4 : 4 + length])
        data = data[8 + length :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("workers", [None, 1])
def test_a_run_has_one_file_for_tensorboard_with_the_validation_in_it(tmp_path, workers):
    how = {
        "samples": 400, "batch": 100,
        "data_options": {"num_slots": 4, "num_dense": 3, "num_multi_valued": 1, "rows_per_slot": 60},
        "model_options": {"num_rows": 240, "width": 4, "hidden": [16, 8]},
    }  # fmt: skip

    result = train(
        "ctr-dnn", folder=tmp_path / "run", workers=workers, validate_every=2, loggers=["tensorboard"], **how
    )
    resume(tmp_path / "run", epochs=2)

    found = events(tmp_path / "run" / "tensorboard")
    trials = {each.samples: each.figures["loss"] for each in read_validated(result.folder)}
    assert dict(found["validation/loss"]) == pytest.approx(trials)
    assert max(trials) == 800
    assert [step for step, _ in found["loss"]][-1] == 800


def test_processes_that_write_at_once_leave_whole_records(tmp_path):
    folder = tmp_path / "board"
    boards = [TensorBoardFile(folder) for _ in range(3)]
    for step in range(50):
        for name, board in zip("abc", boards, strict=True):
            board.write({name: float(step)}, step)
    for board in boards:
        board.close()

    assert events(folder) == {name: [(step, float(step)) for step in range(50)] for name in "abc"}


def test_a_package_that_is_not_installed_is_said_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)

    with pytest.raises(TrainingError, match="`wandb` is not installed") as caught:
        WandB()

    assert caught.value.hint == "pip install wandb"


def test_settings_are_named_by_their_path():
    assert flat({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}
