"""Trying a model while it is trained: the best checkpoint is kept, and a run that gets no better stops."""

import json
import math
import time

import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dovetail.data import DataError
from dovetail.runtime import Callback, TrainingError, restore_into, train
from dovetail.runtime.finished.result import is_better, read_validated
from dovetail.runtime.launch.validation import Validator
from dovetail.spec.run_sections import RunValidation


class Line(nn.Module):
    """A straight line."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)
        with torch.no_grad():
            self.line.weight.fill_(0.0)
            self.line.bias.fill_(0.0)

    def forward(self, dense):
        return self.line(dense)


class SlowLine(Line):
    """One that leaves time to be tried between its steps."""

    def forward(self, dense):
        if self.training:
            time.sleep(0.05)
        return super().forward(dense)


def slope(weight, num_samples=400):
    """Return samples on a line through 0."""
    numbers = torch.linspace(-1.0, 1.0, num_samples)[:, None]
    return TensorDataset(numbers, weight * numbers[:, 0])


SMALL = {"workers": 1, "servers": 1, "batch": 40, "loss": "squared", "optimizer": "sgd", "learning_rate": 0.1}


class Noting(Callback):
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def begin(self, folder, run):
        self.told.append("begin")

    def report(self, report):
        if self.told[-1] != "report":
            self.told.append("report")

    def validated(self, found):
        self.told.append(("validated", found.step))

    def end(self, result):
        self.told.append("end")

    def close(self):
        self.told.append("close")


class Figures:
    """A logger of one's own."""

    def __init__(self):
        self.lines, self.settings, self.is_closed = [], {}, False

    def begin(self, folder, settings):
        self.settings = settings

    def log(self, figures, step):
        self.lines.append((step, dict(figures)))

    def close(self):
        self.is_closed = True


def test_the_best_checkpoint_is_kept_and_a_run_that_gets_worse_stops(tmp_path, capfd):
    # Trained towards a slope of 4 and tried on a slope of 1: the loss there falls until the weight has passed 1, then
    # rises. Each epoch is ten steps of w += 2 * 0.1 * mean(x^2) * (4 - w), so w(n) = 4 - 4 (1 - 0.0668)^n,
    # as far as a batch has the mean of all: two steps are further apart than that is wrong.
    noting, figures = Noting(), Figures()
    result = train(
        SlowLine(), slope(4.0), folder=tmp_path / "run", epochs=200, validation=slope(1.0), validate_every=2,
        early_stopping=4, callbacks=[noting], loggers=[figures], progress=True, shuffle=True, **SMALL,
    )  # fmt: skip

    losses = [found.figures["loss"] for found in result.validation]
    best = result.best
    assert not result.is_complete  # stopped long before 2,000 steps
    assert best.figures["loss"] == min(losses)
    assert losses.index(min(losses)) < len(losses) - 1
    kept = restore_into(Line(), tmp_path / "run", checkpoint=result.best_checkpoint)
    assert float(kept.line.weight.detach()) == pytest.approx(4 - 4 * (1 - 0.2 / 3) ** best.step, abs=0.15)
    assert float(result.fill(Line(), best=True).line.weight.detach()) == float(kept.line.weight.detach())
    assert read_validated(tmp_path / "run") == list(result.validation)
    # callbacks, loggers and progress hear of it
    assert noting.told[0] == "begin"
    assert noting.told[-2:] == ["end", "close"]
    assert [each for each in noting.told if each[0] == "validated"] == [
        ("validated", found.step) for found in result.validation
    ]
    assert figures.is_closed
    assert figures.settings["training"]["batch"] == 40
    known = {name for _, line in figures.lines for name in line}
    assert {"loss", "learning_rate", "gradient_norm", "validation/loss"} <= known
    assert "the best so far" in capfd.readouterr().err
    # the run's own figures have the learning rate and the norm of the gradient
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["learning_rate"] for line in lines} == {0.1}
    assert any(line["gradient_norm"] for line in lines)
    assert not (tmp_path / "run" / "tried").exists()


def test_a_run_that_trains_on_all_of_its_data_has_none_to_validate_on(tmp_path):
    with pytest.raises(TrainingError, match="no data are left to validate on"):
        train(Line(), slope(1.0), folder=tmp_path / "run", validate_every=5, **SMALL)


def test_held_out_samples_are_those_beyond_an_epoch(tmp_path):
    result = train(
        Line(), slope(1.0, 400), folder=tmp_path / "run", samples=300, epochs=2, validate_every=4, **SMALL
    )  # fmt: skip

    assert result.validation
    assert result.validation[-1].step == result.step == 16  # two epochs of 7 batches of 40 and one of 20


def test_metrics_know_which_way_is_better():
    assert is_better("loss", 0.5, 0.6)
    assert is_better("auc", 0.7, 0.6)
    assert is_better("recall@10", 0.7, 0.6)
    assert not is_better("loss", 0.7, 0.6)
    assert not is_better("loss", 0.59, 0.6, least_gain=0.02)
    assert not is_better("loss", math.nan, 0.6)
    assert is_better("loss", 0.6, math.nan)


@pytest.mark.parametrize(
    ("bests", "patience", "stops"),
    [
        ([True, False, False], 2, True),
        ([True, False, True], 2, False),
        ([True, False], 2, False),
        ([True], None, False),
    ],
)
def test_a_run_stops_after_so_many_trials_that_are_not_the_best(bests, patience, stops):
    from dovetail.runtime.finished.result import Validated

    validator = Validator.__new__(Validator)
    validator._settings = RunValidation(patience=patience)
    validator.history = [Validated(step=n, samples=n, figures={}, is_best=best) for n, best in enumerate(bests)]

    assert validator.should_stop() is stops


@pytest.mark.parametrize(("name", "hint"), [("wandbb", "wandb"), ("nowhere.at_all:Logger", "PYTHONPATH")])
def test_a_logger_that_is_not_there_is_refused_before_anything_starts(tmp_path, name, hint):
    with pytest.raises(TrainingError) as caught:
        train(Line(), slope(1.0), folder=tmp_path / "run", loggers=[name], **SMALL)

    assert hint in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_validation_data_that_do_not_fit_leave_no_run_behind(tmp_path):
    other = pa.table({"label": [0.0, 1.0], "size": [1.0, 2.0]})
    table = pa.table({"label": [0.0, 1.0] * 50, "x": [0.0, 1.0] * 50})

    with pytest.raises(DataError, match="the data have no number `x`, which the model reads"):
        train(Line(), table, validation=other, folder=tmp_path / "run", **SMALL)

    assert not (tmp_path / "run").exists()


def test_the_best_may_be_so_by_any_metric(tmp_path):
    result = train(
        Line(), slope(1.0), folder=tmp_path / "run", validation=slope(1.0), validation_metric="mae", epochs=2, **SMALL
    )

    assert result.best.figures["mae"] == min(found.figures["mae"] for found in result.validation)
    assert result.best.figures["mae"] < result.validation[0].figures["mae"] or len(result.validation) == 1
