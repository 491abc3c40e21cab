"""Losses, metrics, optimizers and schedules by name."""

import math

import pytest
import torch
from torch import nn

from dovetail.models import (
    Auc,
    LogLoss,
    ModelError,
    ModelOptimizer,
    RecallAt,
    SlotEmbedding,
    loss_block,
    make_metric,
    make_optimizer,
    make_schedule,
)


def test_losses_are_sums_over_samples():
    labels = torch.tensor([1.0, 0.0])
    scores = torch.tensor([0.0, math.log(3.0)])

    # -log 1/2 and -log 1/4.
    assert loss_block("logistic").module(scores, labels) == pytest.approx(math.log(2) + math.log(4))
    two = torch.stack([torch.zeros(2), scores], dim=1)
    assert loss_block("cross-entropy").module(two, labels) == pytest.approx(math.log(2) + math.log(4))
    assert loss_block("squared").module(scores, labels) == pytest.approx(1 + math.log(3) ** 2)


def test_the_hinge_counts_what_lacks_to_the_margin_for_clicked_samples():
    scores = torch.tensor([[0.9, 0.0, 0.5], [0.1, 0.9, 0.9]])

    # The first sample misses 0.8 - 0.9 + 0.5 = 0.4 once out of two; the second was not clicked.
    assert loss_block("hinge").module(scores, torch.tensor([1.0, 0.0])).item() == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("logistic", torch.zeros(3, 2)),
        ("cross-entropy", torch.zeros(3, 1)),
        ("hinge", torch.zeros(3, 1)),
        ("softmax", torch.zeros(3)),
    ],
)
def test_scores_of_the_wrong_shape_are_refused(name, scores):
    with pytest.raises(ModelError, match=f"`{name}` needs scores of shape"):
        loss_block(name).module(scores, torch.zeros(3))


def test_the_auc_is_that_of_counting_pairs_up_to_its_error_bound():
    torch.manual_seed(0)
    scores, labels = torch.randn(400), (torch.rand(400) < 0.3).float()
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    expected = float((pairs > 0).double().mean() + 0.5 * (pairs == 0).double().mean())
    fine, coarse = Auc(), Auc(num_bins=50)

    for part in (slice(0, 150), slice(150, 400)):
        fine.update(scores[part], labels[part])
        coarse.update(scores[part], labels[part])

    assert fine.value() == pytest.approx(expected, abs=fine.error_bound() + 1e-12)
    assert coarse.value() == pytest.approx(expected, abs=coarse.error_bound())
    assert fine.error_bound() < 1e-4 < coarse.error_bound()


def test_metrics_of_two_workers_merge_into_that_of_one():
    torch.manual_seed(1)
    scores, labels = torch.randn(300, 1), (torch.rand(300) < 0.4).float()
    for name in ("auc", "log-loss"):
        whole, left, right = make_metric(name), make_metric(name), make_metric(name)
        whole.update(scores, labels)
        left.update(scores[:100], labels[:100])
        right.update(scores[100:], labels[100:])
        left.merge(right)
        assert left.value() == pytest.approx(whole.value(), rel=1e-12)


def test_recall_counts_targets_among_the_best_and_gives_ties_no_credit():
    recall = RecallAt(2)
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1], [0.3, 0.3, 0.3]])

    recall.update(scores, torch.tensor([1, 2, 0]))

    assert recall.value() == pytest.approx(1 / 3)


def test_the_log_loss_of_two_scores_is_that_of_their_difference():
    loss = LogLoss()
    loss.update(torch.tensor([[1.0, 1.0 + math.log(3.0)]]), torch.tensor([1.0]))

    assert loss.value() == pytest.approx(math.log(4 / 3))


def test_metrics_without_samples_are_not_a_number():
    assert all(math.isnan(make_metric(name).value()) for name in ("auc", "log-loss", "recall@5"))


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ModelError, match="not finite"):
        Auc().update(torch.tensor([math.nan]), torch.tensor([1.0]))


class Both(nn.Module):
    """A table and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotEmbedding(num_rows=4, width=1, num_slots=1)
        self.fc = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.table.weight.fill_(1.0)
            self.fc.weight.fill_(1.0)


def test_sgd_moves_dense_and_sparse_parameters_by_rate_times_gradient():
    model = Both()
    optimizer = make_optimizer(model, "sgd", 0.1)
    model.fc(model.table(torch.tensor([2]), torch.tensor([0, 1]))).sum().backward()

    optimizer.step(0.5)

    # Both gradients are 1, at half of the rate.
    assert model.fc.weight.item() == pytest.approx(0.95)
    assert model.table.weight[:, 0].tolist() == pytest.approx([1.0, 1.0, 0.95, 1.0])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "adamw"])
def test_every_optimizer_lowers_a_loss_and_goes_on_from_its_state(name):
    def steps(model: Both, optimizer: ModelOptimizer, count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            loss = (model.fc(model.table(torch.tensor([2, 3]), torch.tensor([0, 1, 2]))) - 3.0).pow(2).sum()
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    model, other = Both(), Both()
    optimizer = make_optimizer(model, name, 0.01)
    before = steps(model, optimizer, 1)
    steps(model, optimizer, 4)
    other.load_state_dict(model.state_dict())
    restored = make_optimizer(other, name, 0.01)
    restored.load_state_dict(optimizer.state_dict())

    assert steps(model, optimizer, 3) < before
    steps(other, restored, 3)
    assert torch.equal(other.fc.weight, model.fc.weight)
    assert torch.equal(other.table.weight, model.table.weight)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", {}, [1.0, 1.0, 1.0]),
        ("warmup", {"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ("inverse-sqrt", {"warmup_steps": 1}, [1.0, 1 / math.sqrt(2), 1 / math.sqrt(3)]),
        ("linear", {"total_steps": 5}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("linear", {"total_steps": 6, "warmup_steps": 1, "floor": 0.5}, [1.0, 1.0, 0.875, 0.75, 0.625, 0.5]),
        ("cosine", {"total_steps": 3}, [1.0, 0.5, 0.0]),
    ],
)
def test_schedules_follow_their_formulas(name, options, expected):
    schedule = make_schedule(name, **options)

    assert [schedule(step) for step in range(len(expected))] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: loss_block("hingee"), "no loss `hingee`"),
        (lambda: make_metric("acu"), "no metric `acu`"),
        (lambda: make_metric("recall@0"), "no metric `recall@0`"),
        (lambda: make_optimizer(nn.Linear(1, 1), "adm", 0.1), "no optimizer `adm`"),
        (lambda: make_optimizer(nn.Linear(1, 1), "adam", 0.0), "learning rate is 0"),
        (lambda: make_schedule("cosin"), "no schedule `cosin`"),
        (lambda: make_schedule("cosine"), "total_steps"),
    ],
)
def test_names_that_are_not_there_are_refused_with_a_way_out(make, complaint):
    with pytest.raises(ModelError, match=complaint) as caught:
        make()

    assert caught.value.hint
