"""Losses give one value a sample, fit their labels, and are found by what labels and answers look like."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.errors import MissingExtraError
from dovetail.models import ModelError, make_loss, make_metric
from dovetail.models.task import check_task, infer_loss, usual_metrics

CLICKS = torch.tensor([0.0, 1.0, 1.0, 0.0])
NUMBERS = torch.tensor([0.5, -3.0, 812.0, 7.0])
CLASSES = torch.tensor([0.0, 9.0, 3.0, 1.0])
TORCH_SCORES = torch.linspace(-2, 2, 12).view(4, 3)


@pytest.mark.parametrize(
    ("scores", "labels", "loss", "metrics"),
    [
        (torch.zeros(4), CLICKS, "logistic", ("auc",)),
        (torch.zeros(4, 1), CLICKS, "logistic", ("auc",)),
        (torch.zeros(4, 2), CLICKS, "cross-entropy", ("auc",)),
        (torch.zeros(4, 10), CLASSES, "cross-entropy", ("accuracy",)),
        (torch.zeros(4, 1), NUMBERS, "squared", ("rmse",)),
        (torch.zeros(4, 1), CLASSES, "squared", ("rmse",)),
        (torch.zeros(4, 3), torch.ones(4, 3), "logistic", ("accuracy",)),
        (torch.zeros(4, 3), torch.full((4, 3), 2.5), "squared", ("rmse",)),
        (torch.zeros(4, 5, 7), torch.ones(4, 5), "cross-entropy", ("accuracy",)),
        (
            {"click": torch.zeros(4), "price": torch.zeros(4, 1)},
            torch.stack([CLICKS, NUMBERS], dim=1),
            {"click": "logistic", "price": "squared"},
            ("click.auc", "price.rmse"),
        ),
    ],
)
def test_labels_and_answers_tell_the_loss(scores, labels, loss, metrics):
    assert infer_loss(scores, labels) == loss
    assert usual_metrics(loss, scores) == metrics
    assert make_loss(loss)(scores, labels).shape == (4,)


@pytest.mark.parametrize(
    ("scores", "labels", "complaint"),
    [
        (torch.zeros(4, 3), torch.tensor([0.0, 1.0, 1.0, 0.0]), "answers 3 numbers a sample, and all labels .* 0 or 1"),
        (torch.zeros(4, 10), NUMBERS, r"no loss fits labels of shape \[n\], such as -3, 0.5, 7"),
        (torch.zeros(4, 3), torch.ones(4, 2), r"answers of shape \[n, 3\]"),
        ((torch.zeros(4), torch.zeros(4)), CLICKS, "answers 2 parts"),
    ],
)
def test_what_fits_no_loss_is_asked_for(scores, labels, complaint):
    with pytest.raises(ModelError, match=complaint):
        infer_loss(scores, labels)


@pytest.mark.parametrize(
    ("loss", "scores", "labels", "complaint"),
    [
        ("logistic", torch.zeros(4), NUMBERS, "a label is -3, and the loss `logistic` is for labels from 0 to 1"),
        ("cross-entropy", torch.zeros(4, 5), CLASSES, "labels such as 9 are none of the classes 0 to 4"),
        ("cross-entropy", torch.zeros(4, 5), -CLICKS, "such as -1"),
        ("cross-entropy", torch.zeros(4, 5), torch.full((4,), 0.5), "such as 0.5"),
        ("squared", torch.zeros(4), torch.tensor([1.0, math.nan, 0.0, 1.0]), "not a finite number"),
        ({"a": "logistic"}, {"a": torch.zeros(4)}, NUMBERS[:, None], "a label is -3"),
    ],
)
def test_labels_that_fit_no_loss_are_refused(loss, scores, labels, complaint):
    with pytest.raises(ModelError, match=complaint):
        check_task(loss, scores, labels)


@pytest.mark.parametrize(
    ("loss", "scores", "labels", "whole"),
    [
        ("logistic", TORCH_SCORES, (TORCH_SCORES > 0.5).float(), nn.BCEWithLogitsLoss()),
        ("squared", TORCH_SCORES, TORCH_SCORES.flip(0), nn.MSELoss()),
        ("absolute", TORCH_SCORES, TORCH_SCORES.flip(0), nn.L1Loss()),
        ("huber", TORCH_SCORES, TORCH_SCORES.flip(0), nn.HuberLoss()),
        (nn.MSELoss(), TORCH_SCORES[:, :1], NUMBERS, nn.MSELoss()),
        (nn.CrossEntropyLoss(label_smoothing=0.1), TORCH_SCORES, CLICKS, nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.SmoothL1Loss(), TORCH_SCORES, TORCH_SCORES.flip(0), nn.SmoothL1Loss()),
        ("torch.nn:BCEWithLogitsLoss", TORCH_SCORES[:, 0], CLICKS, nn.BCEWithLogitsLoss()),
        ("cross-entropy", TORCH_SCORES, functional.softmax(TORCH_SCORES.flip(0), dim=1), nn.CrossEntropyLoss()),
    ],
)
def test_the_mean_of_one_value_a_sample_is_pytorchs_mean(loss, scores, labels, whole):
    each = make_loss(loss)(scores, labels)

    reshaped = scores[:, 0] if scores.shape == (4, 1) else scores
    expected = whole(
        reshaped, labels.long() if isinstance(whole, nn.CrossEntropyLoss) and labels.dim() == 1 else labels
    )
    assert each.shape == (4,)
    assert each.mean().item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_sum_of_pytorchs_is_summed_within_a_sample():
    each = make_loss(nn.MSELoss(reduction="sum"))(torch.zeros(2, 3), torch.ones(2, 3))

    assert each.tolist() == [3.0, 3.0]


def mean_of_squares(scores, labels):
    return (scores[:, 0] - labels).square().mean()


def squares(scores, labels):
    return (scores[:, 0] - labels).square()


def outer(scores, labels):
    return (scores - labels).square()  # [n, 1] less [n] is [n, n]


@pytest.mark.parametrize(("loss", "got"), [(mean_of_squares, r"shape \[\]"), (outer, r"shape \[4, 4\]")])
def test_a_loss_that_is_not_one_value_a_sample_is_refused(loss, got):
    with pytest.raises(ModelError, match=rf"the loss `{loss.__name__}` returned {got} for 4 samples") as caught:
        make_loss(loss)(torch.zeros(4, 1), NUMBERS)

    assert "neither their mean nor their sum" in caught.value.hint


@pytest.mark.parametrize("loss", [squares, "tests.models.test_tasks:squares"])
def test_a_function_of_ones_own_is_a_loss(loss):
    assert make_loss(loss)(torch.zeros(4, 1), NUMBERS).tolist() == NUMBERS.square().tolist()


class Learnt(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, scores, labels):
        return (scores[:, 0] - labels).abs() * self.temperature


def test_a_loss_with_parameters_is_refused():
    with pytest.raises(ModelError, match="`Learnt` has parameters of its own"):
        make_loss(Learnt())


def test_heads_add_up_and_find_their_label():
    scores = {"price": torch.tensor([[1.0], [2.0]]), "click": torch.tensor([0.0, 0.0])}
    labels = torch.tensor([[3.0, 1.0], [2.0, 0.0]])

    losses = make_loss({"click": "logistic", "price": "squared"})(scores, labels)

    assert losses.tolist() == pytest.approx([4.0 + math.log(2), math.log(2)])
    with pytest.raises(ModelError, match="losses for `click`, and the model answers `price`, `click`"):
        make_loss({"click": "logistic"})(scores, labels)


@pytest.mark.parametrize(
    ("name", "scores", "labels", "expected"),
    [
        ("accuracy", torch.tensor([2.0, -1.0, 0.5, -3.0]), CLICKS, 0.5),
        ("accuracy", torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.0]]), torch.tensor([1.0, 2.0]), 0.5),
        ("accuracy", torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.75),
        ("rmse", torch.tensor([[1.0], [5.0]]), torch.tensor([4.0, 1.0]), math.sqrt((9 + 16) / 2)),
        ("mae", torch.tensor([1.0, 5.0]), torch.tensor([4.0, 1.0]), 3.5),
        ("calibration", torch.zeros(4), torch.tensor([1.0, 0.0, 0.0, 0.0]), 2.0),
        ("log-loss", torch.zeros(2, 5), torch.tensor([0.0, 4.0]), math.log(5)),
        ("recall@2", torch.tensor([[0.5, 0.4, 0.3], [0.5, 0.4, 0.3]]), torch.tensor([1.0, 2.0]), 0.5),
        ("price.mae", {"click": torch.zeros(2), "price": torch.ones(2)}, torch.tensor([[0.0, 3.0], [1.0, 1.0]]), 1.0),
    ],
)
def test_metrics_are_those_worked_out_by_hand(name, scores, labels, expected):
    metric, other = make_metric(name), make_metric(name)
    metric.update(scores, labels)
    other.update(scores, labels)
    metric.merge(other)

    assert metric.value() == pytest.approx(expected)


class LargestGap:
    """A metric as other libraries have them."""

    def __init__(self):
        self.seen = []

    def update(self, preds, target):
        assert target.dtype == torch.int64
        self.seen.append((preds - target).abs().max())

    def compute(self):
        return torch.stack(self.seen).max()


def test_a_metric_of_another_library_is_named_by_its_import_path():
    metric = make_metric("tests.models.test_tasks:LargestGap")
    metric.update(torch.zeros(4, 1), CLICKS)

    assert metric.value() == pytest.approx(0.5)  # chances of a half


class Parts:
    """A metric that looks at all parts of an answer."""

    def __init__(self):
        self.seen = set()

    def update(self, scores, targets):
        self.seen.add((*scores, tuple(targets.shape)))

    def compute(self):
        return len(self.seen)


def test_a_metric_of_another_library_gets_one_part_of_an_answer_or_all():
    answer, labels = {"click": torch.zeros(4, 1), "price": torch.ones(4)}, torch.stack([CLICKS, CLICKS], dim=1)
    of_one = make_metric("click.tests.models.test_tasks:LargestGap")
    of_all = make_metric("tests.models.test_tasks:Parts")
    for metric in (of_one, of_all):
        metric.update(answer, labels)

    assert of_one.value() == pytest.approx(0.5)
    assert of_all._inner.seen == {("click", "price", (4, 2))}
    with pytest.raises(ModelError, match=r"metric `tests.*LargestGap` failed: AssertionError") as caught:
        make_metric("tests.models.test_tasks:LargestGap").update(answer, labels)
    assert "`click.tests.models.test_tasks:LargestGap` is given those of one part" in caught.value.hint


def test_a_module_that_is_not_there_is_named_as_it_was_said():
    with pytest.raises(ModelError, match=r"no\.such\.module:metric"):
        make_metric("no.such.module:metric")


def test_what_is_no_metric_and_what_is_not_installed_are_refused(monkeypatch):
    with pytest.raises(ModelError, match="could not be made: TypeError"):
        make_metric("torch.nn:Linear")
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    monkeypatch.setattr("dovetail.models.metrics._is_installed", lambda package: False)
    with pytest.raises(MissingExtraError, match="torchmetrics is not installed"):
        make_metric("torchmetrics:CohenKappa")


@pytest.mark.parametrize(
    ("options", "complaint", "example"),
    [
        ({"num_rows": "abc"}, "num_rows = 'abc', expected a whole number", "num_rows=100"),
        ({"hidden": ["a", "b"]}, r"hidden = \['a', 'b'\], expected whole numbers", "hidden=64,32"),
        ({"hidden": 64}, "hidden = 64, expected whole numbers", "hidden=64,32"),
        ({"dropout": "half"}, "dropout = 'half', expected a number", "dropout=0.1"),
        ({"hidden": []}, r"could not be built with hidden = \[\]", "sizes"),
        ({"hidden": [-3]}, r"could not be built with hidden = \[-3\]", "sizes"),
        ({"width": 0}, "rows of 0", "at least 1"),
    ],
)
def test_wrong_options_of_a_model_are_refused_with_an_example(options, complaint, example):
    from dovetail.models import load_model

    with pytest.raises(ModelError, match=complaint) as caught:
        load_model("ctr-dnn", **options)

    assert example in caught.value.hint
