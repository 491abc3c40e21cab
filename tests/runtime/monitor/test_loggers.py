"""Figures reach other programs: packages that stand in for those, with the same few functions, note what they get."""

import json
import sys

import pytest

from dovetail.runtime import MLflow, TrainingError, WandB
from dovetail.runtime.finished.result import Validated
from dovetail.runtime.monitor.loggers import Logging, TensorBoard, flat
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


def test_tensorboard_gets_a_file_of_its_own(tmp_path):
    logging = Logging(TensorBoard())
    (tmp_path / "run").mkdir()

    logging.begin(tmp_path / "run", RUN)
    logging.validated(FOUND)
    logging.close()

    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"validation/loss" in file.read_bytes()


def test_a_package_that_is_not_installed_is_said_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)

    with pytest.raises(TrainingError, match="`wandb` is not installed") as caught:
        WandB()

    assert caught.value.hint == "pip install wandb"


def test_settings_are_named_by_their_path():
    assert flat({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}
