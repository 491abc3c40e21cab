"""Models that compute their own loss, several losses, and losses that count more than others."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.models import ModelError, as_whole, make_loss
from dovetail.models.task import infer_loss
from dovetail.runtime import predict_run, train
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.any_model import NUM_DENSE, Labelled, both, by_pytorch, clicked, make_run, train_here, uneven
from tests.runtime.runs import assert_same_state, last_state, state_in
from tests.runtime.test_equality import assert_equals


class Own(nn.Module):
    """Answers its own loss: what `reduce` makes of one value a sample."""

    takes = ("dense", "labels")
    reduce = staticmethod(torch.mean)

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(NUM_DENSE, 8), nn.ReLU(), nn.Linear(8, 1))

    def scores(self, dense):
        return self.net(dense).reshape(-1)

    def each(self, dense, labels):
        return functional.binary_cross_entropy_with_logits(self.scores(dense), labels, reduction="none")

    def forward(self, dense, labels):
        return self.reduce(self.each(dense, labels))


class Penalised(Own):
    """A mean, and something that the samples have no part in."""

    def forward(self, dense, labels):
        return super().forward(dense, labels) + 0.01 * self.net[0].weight.square().sum()


class Added(Own):
    reduce = staticmethod(torch.sum)


class Several(Own):
    """Two losses of its own."""

    def forward(self, dense, labels):
        each = self.each(dense, labels)
        return {"first": each.mean(), "second": (0.1 * self.scores(dense).square()).sum()}


class LikeTransformers(Own):
    """A loss, and what else there is to see."""

    def forward(self, dense, labels):
        return {"loss": super().forward(dense, labels), "logits": self.scores(dense), "extra": dense.sum()}


class Contrast(Own):
    """Compares samples with each other: no sum over samples, however it is divided."""

    def forward(self, dense, labels):
        scores = self.scores(dense)
        return torch.logsumexp(scores, 0) - scores.mean()


def whole(answer, batch):
    """Return the loss that PyTorch would divide by the number of samples."""
    return answer * batch.num_samples


CASES = {
    "mean": (Own, {"": "answer-mean"}, whole),
    "penalty": (Penalised, {"": "answer-mean"}, whole),
    "sum": (Added, {"": "answer-sum"}, lambda answer, batch: answer),
    "several": (
        Several,
        {"first": "answer-mean", "second": "answer-sum"},
        lambda answer, batch: whole(answer["first"], batch) + answer["second"],
    ),
    "transformers": (
        LikeTransformers,
        {"loss": "answer-mean", "logits": "none", "extra": "none"},
        lambda answer, batch: whole(answer["loss"], batch),
    ),
}


class Plain(nn.Module):
    def __init__(self, module, loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch):
        return self.loss(self.module(batch.dense, batch.labels), batch)


def by_torch(run, model, source, loss):
    """Train in one process with PyTorch alone."""
    return by_pytorch(run, _Takes(model), source, lambda scores, batch: loss(model(batch.dense, batch.labels), batch))


class _Takes(nn.Module):
    """The model, called for nothing: the loss calls it with the labels."""

    takes = ()

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return None


@pytest.mark.parametrize("case", list(CASES))
def test_a_model_that_answers_its_loss_ends_where_pytorch_ends(tmp_path, case):
    kind, expected, loss = CASES[case]
    torch.manual_seed(2)
    model, source = kind(), Labelled(clicked)
    run = make_run()

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    blueprint = prepare(make_run(epochs=2), tmp_path / "run", model=kind(), source=source, resume=True)
    assert blueprint.run.model.loss == expected.get("", expected)
    assert_equals(tmp_path / "run", by_torch(run, model, source, loss))


def test_spread_over_workers_it_ends_there_too(tmp_path):
    kind, _, loss = CASES["several"]
    torch.manual_seed(2)
    model, source = kind(), Labelled(clicked)
    run = make_run(micro_batch=33)

    train(copy.deepcopy(model), source, run=run, folder=tmp_path / "run", workers=2)

    assert_equals(tmp_path / "run", by_torch(run, model, source, loss))
    found = evaluate_run(tmp_path / "run", model=kind(), source=source, num_samples=100)
    assert 0.0 < found.loss < 2.0


class Heads(nn.Module):
    takes = ("dense",)

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(NUM_DENSE, 2)

    def forward(self, dense):
        click, price = self.out(dense).unbind(dim=1)
        return {"click": click, "price": price}


def test_losses_count_as_much_as_they_are_told(tmp_path):
    torch.manual_seed(6)
    model, source = Heads(), Labelled(both)
    run = make_run(loss={"click": "2 * logistic", "price": "0.01 * squared"})

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    def weighted(scores, batch):
        click = functional.binary_cross_entropy_with_logits(scores["click"], batch.labels[:, 0], reduction="sum")
        return 2 * click + 0.01 * functional.mse_loss(scores["price"], batch.labels[:, 1], reduction="sum")

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, weighted))
    answers = predict_run(tmp_path / "run", source, model=Heads())
    assert list(answers.probabilities) == ["click"]


def far(scores, labels):
    return (scores - labels).abs()


def test_parts_of_an_answer_may_have_functions_for_losses(tmp_path):
    torch.manual_seed(6)
    model, source = Heads(), Labelled(both)
    loss = {"click": "logistic", "price": far}

    run = make_run(optimizer=RunOptimizer(name="sgd", learning_rate=0.1))

    result = train(copy.deepcopy(model), source, loss=loss, folder=tmp_path / "run", run=run)

    train_here(run, tmp_path / "alone", as_whole(copy.deepcopy(model), loss=loss), source)
    state = last_state(tmp_path / "run")
    assert result.is_complete
    assert_same_state(state, last_state(tmp_path / "alone"), rtol=2e-4, atol=2e-5)
    assert not np.allclose(state.dense, state_in(tmp_path / "run" / "checkpoints" / "step-0000000000").dense)
    with pytest.raises(TrainingError, match="a loss that is an object needs a model that is one"):
        train("ctr-dnn", loss={"click": far}, folder=tmp_path / "named")


def test_a_loss_that_fails_is_told_with_what_it_was_given(tmp_path):
    model = as_whole(Heads(), loss=far)
    with pytest.raises(ModelError, match="the loss fails on the first samples: TypeError") as caught:
        prepare(make_run(), tmp_path / "run", model=model, source=Labelled(both))

    assert "with the parts click, price, and labels of shape [" in caught.value.hint


def test_a_number_that_is_no_sum_over_samples_is_refused_unless_it_is_asked_for(tmp_path):
    source = Labelled(clicked)

    with pytest.raises(
        ModelError, match="the model's answer is one number, and neither the mean nor the sum"
    ) as caught:
        prepare(make_run(), tmp_path / "run", model=Contrast(), source=source)

    assert 'loss = "answer-mean"' in caught.value.hint
    train_here(make_run(loss="answer-mean"), tmp_path / "run", Contrast(), source)


def test_a_number_for_all_samples_cannot_count_some_more_than_others(tmp_path):
    with pytest.raises(ModelError, match="the data have weights, and the model's loss is one number"):
        prepare(make_run(loss="answer-mean"), tmp_path / "run", model=Own(), source=Labelled(clicked, weights=uneven))


def test_a_loss_alone_is_no_prediction(tmp_path):
    source = Labelled(clicked)
    train_here(make_run(), tmp_path / "run", Own(), source)

    with pytest.raises(TrainingError, match="answers with its loss alone"):
        predict_run(tmp_path / "run", source, model=Own())


def test_one_value_a_sample_may_be_the_answer():
    values, labels = torch.rand(5), torch.zeros(5)

    assert torch.equal(make_loss("answer")(values, labels), values)
    assert torch.equal(make_loss("3 * answer")(values, labels), 3 * values)
    with pytest.raises(ModelError, match=r"is its loss, `answer`, and it answers shape \[5, 1\] to 5 samples"):
        make_loss("answer")(values.view(5, 1), labels)


@pytest.mark.parametrize("loss", ["0 * squared", "2 * cubed", {"a": "none"}])
def test_losses_that_make_no_sense_are_refused(loss):
    with pytest.raises(ModelError):
        make_loss(loss)


def test_a_part_with_labels_beside_one_number_has_all_labels():
    scores = {"click": torch.zeros(4), "penalty": torch.tensor(1.0)}

    loss = infer_loss(scores, torch.tensor([0.0, 1.0, 1.0, 0.0]), {"penalty": "answer-mean"})

    assert loss == {"click": "logistic", "penalty": "answer-mean"}
    values = make_loss(loss)(scores, torch.ones(4))
    assert values.tolist() == pytest.approx([1.0 + 0.6931472] * 4)
