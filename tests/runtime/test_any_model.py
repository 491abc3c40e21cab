"""Whatever is right under data parallelism trains, for any task, and ends where PyTorch ends in one process."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.models import ModelError, SlotEmbedding, as_whole
from dovetail.runtime import restore_into, restore_model, train
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.result import RunSummary
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.any_model import (
    NUM_DENSE,
    NUM_SLOTS,
    ROWS,
    Labelled,
    both,
    by_pytorch,
    classes,
    clicked,
    make_run,
    numbers,
    several,
    train_here,
    uneven,
)
from tests.runtime.test_equality import assert_equals


class Own(nn.Module):
    """A hidden layer over numbers, then `outputs` scores; `takes` is what its forward is given."""

    takes = ("dense",)

    def __init__(self, outputs=1):
        super().__init__()
        self.hidden = nn.Linear(NUM_DENSE, 8)
        self.out = nn.Linear(8, outputs)

    def forward(self, dense):
        return self.out(torch.relu(self.hidden(dense)))


class Heads(Own):
    def forward(self, dense):
        click, price = super().forward(dense).unbind(dim=1)
        return {"click": click, "price": price}


class Raw(Own):
    """Parameters and buffers of its own, a layer used twice, a branch on values, weights shared by two layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((NUM_DENSE,), 0.7))
        self.register_buffer("shift", torch.full((NUM_DENSE,), 0.1))
        self.square = nn.Linear(NUM_DENSE, NUM_DENSE)
        self.other = nn.Linear(NUM_DENSE, NUM_DENSE)
        self.other.weight = self.square.weight

    def forward(self, dense):
        mixed = self.other(self.square(self.square(dense * self.scale + self.shift)))
        return super().forward(torch.where(mixed > 0, mixed, -0.1 * mixed))


class Frozen(Own):
    def __init__(self):
        super().__init__()
        self.hidden.requires_grad_(False)


class Tables(nn.Module):
    """One table looked up twice, another whose weight two layers share, one column each."""

    takes = ("ids", "dense")

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True)
        self.user, self.item = nn.Embedding(ROWS, 3, sparse=True), nn.Embedding(ROWS, 3, sparse=True)
        self.item.weight = self.user.weight
        self.out = nn.Linear(2 * 4 + 2 * 3 + NUM_DENSE, 1)

    def forward(self, ids, dense):
        user, item = ids.view(-1, NUM_SLOTS).unbind(dim=1)
        parts = [self.table(user), self.table(item), self.user(user), self.item(item), dense]
        return self.out(torch.cat(parts, dim=1))


class TiedOut(nn.Module):
    """An embedding whose weight also scores: no table, but a dense parameter."""

    takes = ("ids",)

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(ROWS, 4, sparse=True)
        self.score = nn.Linear(4, ROWS, bias=False)
        self.score.weight = self.embed.weight

    def forward(self, ids):
        return self.score(self.embed(ids.view(-1, NUM_SLOTS)[:, 0])).view(-1, ROWS // 5, 5).sum(dim=1)


def logistic(scores, batch):
    return functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels, reduction="sum")


def squared(scores, batch):
    return functional.mse_loss(scores.reshape(-1), batch.labels, reduction="sum")


def cross_entropy(scores, batch):
    return functional.cross_entropy(scores, batch.labels.long(), reduction="sum")


def multi_label(scores, batch):
    return functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum") / batch.labels.shape[1]


def two_heads(scores, batch):
    click = functional.binary_cross_entropy_with_logits(scores["click"], batch.labels[:, 0], reduction="sum")
    return click + functional.mse_loss(scores["price"], batch.labels[:, 1], reduction="sum")


def weighted(scores, batch):
    each = functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels, reduction="none")
    return (each * batch.weights).sum()


CASES = {
    "clicks": (Own, {}, Labelled(clicked), logistic),
    "regression": (Own, {}, Labelled(numbers), squared),
    "classes": (Own, {"outputs": 5}, Labelled(classes), cross_entropy),
    "labels": (Own, {"outputs": NUM_DENSE}, Labelled(several), multi_label),
    "heads": (Heads, {"outputs": 2}, Labelled(both), two_heads),
    "weights": (Own, {}, Labelled(clicked, weights=uneven), weighted),
    "raw": (Raw, {}, Labelled(clicked), logistic),
    "frozen": (Frozen, {}, Labelled(clicked), logistic),
    "tables": (Tables, {}, Labelled(clicked), logistic),
    "tied-out": (TiedOut, {}, Labelled(classes), cross_entropy),
}


def made(case):
    """Return the model, the data and the loss as PyTorch has it."""
    kind, options, source, loss = CASES[case]
    torch.manual_seed(11)
    return kind(**options), source, loss


@pytest.mark.parametrize("case", list(CASES))
def test_a_model_of_any_task_ends_where_pytorch_ends(tmp_path, case):
    model, source, loss = made(case)
    run = make_run()

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, loss))


@pytest.mark.parametrize(("case", "dense"), [("heads", "ps"), ("tables", "ps"), ("raw", "ring"), ("weights", "ring")])
def test_spread_over_workers_it_ends_there_too(tmp_path, case, dense):
    model, source, loss = made(case)
    run = make_run(dense=dense, micro_batch=33)

    train(copy.deepcopy(model), source, run=run, folder=tmp_path / "run", workers=2)

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, loss))


class Dropping(Own):
    """Drops by its mode, in the two ways that people write."""

    def forward(self, dense):
        hidden = functional.dropout(torch.relu(self.hidden(dense)), 0.5, training=self.training)
        if self.training:
            hidden = hidden + torch.randn_like(hidden)
        return self.out(hidden)


def test_a_model_trains_in_training_mode_and_answers_in_evaluation_mode(tmp_path):
    model, source = Dropping(), Labelled(clicked)

    train_here(make_run(), tmp_path / "run", model, source)
    restored = restore_model(tmp_path / "run", model=Dropping(), source=source).eval()

    batch = source.read(0, 50)
    assert torch.equal(restored.predict(batch), restored.predict(batch))
    hidden = torch.relu(restored.module.hidden(batch.dense))
    assert torch.equal(restored.predict(batch), restored.module.out(hidden))


class Normed(Own):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, dense):
        return self.out(torch.relu(self.norm(self.hidden(dense * 5.0 + 3.0))))


def test_batch_norm_trains_and_its_running_statistics_come_back(tmp_path):
    source = Labelled(clicked, num_samples=20_000)

    result = train(
        Normed(), source, folder=tmp_path / "run", workers=2, batch=200, learning_rate=0.02, optimizer="adam", epochs=2
    )
    model = result.fill(Normed()).eval()

    # What the layer before gives over the data is what the statistics say, up to what a moving average forgets.
    batch = source.read(0, 20_000)
    hidden = model.hidden(batch.dense * 5.0 + 3.0)
    spread = hidden.std(dim=0)
    assert ((model.norm.running_mean - hidden.mean(dim=0)).abs() < 0.3 * spread + 0.05).all()
    assert (model.norm.running_var / spread.square() - 1).abs().max() < 0.5
    again = restore_model(tmp_path / "run", model=Normed(), source=source).eval()
    assert torch.equal(again.predict(batch), model(batch.dense))


def test_running_statistics_of_a_run_in_one_process_are_those_of_pytorch(tmp_path):
    torch.manual_seed(5)
    model, source = Normed(), Labelled(clicked)
    run = make_run(optimizer=RunOptimizer(name="sgd", learning_rate=0.1))
    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    alone = by_pytorch(run, model, source, logistic)

    assert_equals(tmp_path / "run", alone)  # one worker and whole batches: nothing is spread
    filled = restore_into(Normed(), tmp_path / "run")
    torch.testing.assert_close(filled.norm.running_mean, model.norm.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(filled.norm.running_var, model.norm.running_var, rtol=1e-4, atol=1e-5)


def plain_squares(scores, labels):
    return (scores[:, 0] - labels).square()


def test_a_run_with_a_loss_that_is_an_object_goes_on_with_that_loss_only(tmp_path):
    source, folder = Labelled(clicked), tmp_path / "run"
    prepare(make_run(), folder, model=as_whole(Own(), loss=plain_squares), source=source)

    with pytest.raises(TrainingError, match="trained with the loss `plain_squares`"):
        prepare(make_run(), folder, model=Own(), source=source, resume=True)
    prepare(make_run(), folder, model=as_whole(Own(), loss=plain_squares), source=source, resume=True)


def test_filling_a_new_module_fills_frozen_parameters_and_buffers_too(tmp_path):
    class Both(Frozen):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4))

    begun = Both()
    train_here(make_run(), tmp_path / "run", begun, Labelled(clicked))

    new = restore_into(Both(), tmp_path / "run")

    assert torch.equal(new.hidden.weight, begun.hidden.weight)
    assert torch.equal(new.table, begun.table)


class Bag(nn.Module):
    takes = ("ids", "offsets")

    def __init__(self, rows, sparse):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, 2, sparse=sparse, include_last_offset=True, mode="sum")
        self.slots = SlotEmbedding(num_rows=5, width=1, num_slots=NUM_SLOTS)

    def forward(self, ids, offsets):
        return self.bag(ids, offsets).view(-1, 2 * NUM_SLOTS).sum(dim=1) + self.slots(ids, offsets).sum(dim=1)


@pytest.mark.parametrize("sparse", [True, False])
def test_ids_that_a_table_has_no_row_for_are_refused_with_the_column_before_anything_starts(tmp_path, sparse):
    source = Labelled(clicked)

    with pytest.raises(TrainingError, match=r"column `item` has the id 1\d, and the table .* rows 0 to 9") as caught:
        train_here(make_run(), tmp_path / "run", Bag(ROWS // 2, sparse), source)

    assert "hash_into = 10" in caught.value.hint
    assert not (tmp_path / "run").exists()


class Late(Labelled):
    """An id out of range that the first look does not see."""

    def read(self, first, last):
        batch = super().read(first, last)
        batch.ids[(batch.sample_ids == 290).repeat_interleave(NUM_SLOTS)] = 1 << 62
        return batch


def test_a_later_id_that_a_table_has_no_row_for_is_refused_too(tmp_path):
    with pytest.raises(TrainingError, match=r"column `(user|item)` has the id 4611686018427387904"):
        train_here(make_run(), tmp_path / "run", Bag(ROWS, True), Late(clicked))


class Odd(Labelled):
    """A label that the first look does not see."""

    def read(self, first, last):
        batch = super().read(first, last)
        batch.labels[batch.sample_ids == 290] = 7.0
        return batch


def test_a_later_label_that_the_loss_makes_no_sense_of_is_refused(tmp_path):
    with pytest.raises(ModelError, match="a label is 7, and the loss `logistic` is for labels from 0 to 1"):
        train_here(make_run(), tmp_path / "run", Own(), Odd(clicked))


def test_what_a_run_is_judged_by_follows_its_task_or_its_keys(tmp_path):
    source = Labelled(classes, num_samples=20_000)

    result = train(
        Own(outputs=5), source, folder=tmp_path / "run", workers=1, batch=100, metric=["accuracy", "log-loss"], epochs=3
    )

    assert set(result.metrics) == {"accuracy", "log-loss"}
    assert 0.15 < result.metrics["accuracy"] < 0.5  # five classes that numbers do not tell apart
    assert result.metrics["log-loss"] == pytest.approx(result.loss, rel=0.05)
    assert RunSummary.read(tmp_path / "run").metrics == pytest.approx(result.metrics)
