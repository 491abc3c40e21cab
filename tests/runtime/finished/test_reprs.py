"""What results look like where they are shown: what came of it, and what to do next."""

import math
from pathlib import Path

import numpy as np

from dovetail.runtime.finished.evaluate import Evaluation
from dovetail.runtime.finished.predict import Predictions
from dovetail.runtime.finished.result import TrainingResult, Validated
from dovetail.spec import Plan, Stage


def result(**how):
    facts = {
        "folder": Path("runs/mine"), "samples": 12_000, "is_complete": True, "seconds": 4.04, "samples_per_s": 2970.3,
        "loss": 0.51234, "auc": math.nan, "metrics": {"rmse": 0.25}, "step": 60, "workers": {}, "servers": {},
        "imbalance": 1.0, "checkpoint": Path("runs/mine/checkpoints/step-0000000060"),
    }  # fmt: skip
    return TrainingResult(**(facts | how))


def test_a_result_says_what_came_of_the_run_and_what_may_be_done():
    assert repr(result()).splitlines() == [
        "<TrainingResult of runs/mine: 12,000 samples in 60 steps and 4.0 s (2,970 samples/s), loss 0.5123, rmse 0.25",
        ' next: result.load_model(), result.predict(data), result.export("out"), dovetail.evaluate("runs/mine")>',
    ]


def test_a_result_of_a_run_that_was_stopped_says_how_to_go_on():
    first, then = repr(result(is_complete=False)).splitlines()

    assert first.startswith("<TrainingResult of runs/mine: stopped before its end: 12,000 samples")
    assert then.startswith(' next: dovetail.resume("runs/mine"), ')


def test_what_was_an_object_is_asked_for_again():
    _, then = repr(result(is_complete=False, _model=object(), _source=object())).splitlines()

    assert 'dovetail.evaluate("runs/mine", model=model, source=data)' in then
    assert 'dovetail.resume("runs/mine", model=model, data=data)' in then


def test_a_trial_on_validation_data_is_one_line():
    found = Validated(step=1200, samples=9, figures={"loss": 0.51234, "auc": None}, is_best=True)

    assert repr(found) == "<Validated after 1,200 steps: loss 0.5123, the best so far>"


def test_an_evaluation_is_one_line():
    found = Evaluation(
        metric="auc", value=0.75, metrics={"auc": 0.75}, loss=0.5, samples=1000, on="the data given", held_out=True,
        checkpoint="x",
    )  # fmt: skip

    assert repr(found) == "<Evaluation: auc 0.75, loss 0.5 over 1,000 samples of the data given>"


def test_predictions_show_their_shapes_and_not_their_numbers():
    scores = {"click": np.zeros(5, np.float32), "rank": np.zeros((5, 3), np.float32)}
    found = Predictions(rows=np.arange(5), scores=scores, probabilities=None)

    assert repr(found) == "<Predictions of 5 rows: .rows, .scores ['click'] [5], ['rank'] [5, 3]>"


def test_a_plan_is_its_stages_and_what_they_cost():
    stages = (
        Stage(resource="cpu", first_layer=0, last_layer=0, units=3),
        Stage(resource="v100", first_layer=1, last_layer=6, units=1),
    )
    plan = Plan(
        method="exact", stages=stages, samples_per_s=1e6, cost_per_hour=2.5, cost=0.16, lower_bound=0.16, optimal=True,
        seconds=0.1,
    )  # fmt: skip

    assert repr(plan).splitlines()[:2] == [
        "<Plan by exact: 3 x cpu (layers 0-0) -> 1 x v100 (layers 1-6)",
        " 1,000,000 samples/s, $2.50 an hour, $0.16 in all, proven the cheapest",
    ]
