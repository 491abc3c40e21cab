"""Clipped sums of gradients: those of single samples, computed one after the other, whatever the model."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.data.items import items_of
from dovetail.data.load import load_data
from dovetail.models.load import load_model
from dovetail.models.whole import WholeModel
from dovetail.runtime.errors import TrainingError
from tests.runtime.worker.per_sample.makers import (
    Attention,
    Clipped,
    Everything,
    Flattened,
    OwnParameters,
    Tied,
    Transposed,
    UsedElsewhere,
    assert_same,
    one_by_one,
    words_batch,
)

CLIPS = [1e9, 0.4]


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", ["ctr-dnn", "2emb", "dlrm", "matchnet", "nce"])
def test_models_of_the_zoo_have_the_clipped_sums_of_single_samples(name, clip):
    data = load_data("clicks", seed=4, **({"truth": "next-item"} if name == "nce" else {}))
    options = {"items": items_of(data.read(0, 200), first_slot=12), "num_negatives": 3} if name == "matchnet" else {}
    model = load_model(name, seed=1, schema=data.schema, num_rows=40, **options)
    clipped, batch = Clipped(model, clip), data.read(5, 40)

    assert_same(clipped.sums(batch), one_by_one(model, batch, clip)[0])
    assert clipped.said == []


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Everything, "Conv1d"),
        (Attention, "MultiheadAttention"),
        (Tied, ""),
        (UsedElsewhere, "one by one"),
        (OwnParameters, "one by one"),
        (Flattened, "one by one"),
    ],
)
def test_modules_of_users_have_the_clipped_sums_of_single_samples(kind, said, clip):
    torch.manual_seed(2)
    model, batch = WholeModel(kind(), loss="logistic"), words_batch(7)
    clipped = Clipped(model, clip)

    assert_same(clipped.sums(batch), one_by_one(model, batch, clip)[0])
    assert_same(clipped.sums(words_batch(5, seed=1)), one_by_one(model, words_batch(5, seed=1), clip)[0])
    assert len(clipped.said) == bool(said)
    assert all(said in each for each in clipped.said)


@pytest.mark.parametrize("num_samples", [4, 6])
def test_a_model_whose_rows_are_no_samples_is_found_out_and_computed_one_by_one(num_samples):
    torch.manual_seed(2)
    model, batch = WholeModel(Transposed(), loss="logistic"), words_batch(num_samples)  # of 6 words each
    clipped = Clipped(model, 0.4)

    assert_same(clipped.sums(batch), one_by_one(model, batch, 0.4)[0])
    assert "one by one" in clipped.said[0]


def test_no_sample_has_more_than_the_clip_in_the_sum():
    torch.manual_seed(0)
    model = WholeModel(Everything(), loss="logistic")
    clipped = Clipped(model, 0.25)
    for place in range(5):
        one = words_batch(5).slice(place, place + 1)
        _, norms = one_by_one(model, one, 1.0)
        length = sum(float(each.double().square().sum()) for each in clipped.sums(one).values()) ** 0.5

        assert length == pytest.approx(min(0.25, norms[0]), rel=1e-5)


def test_weights_of_samples_and_batches_without_any_are_taken_as_they_are():
    torch.manual_seed(0)
    model, batch = WholeModel(Tied(), loss="squared"), words_batch(4)
    object.__setattr__(batch, "weights", torch.tensor([0.5, 0.0, 2.0, 1.0]))
    clipped = Clipped(model, 3.0)

    assert_same(clipped.sums(batch), one_by_one(model, batch, 3.0)[0])
    assert all(not bool(each.any()) for each in clipped.sums(batch.slice(2, 2)).values())


class Centred(nn.Module):
    """A model in which samples see each other."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(9, 1)

    def forward(self, x):
        """Return one score a sample."""
        return self.fc(x - x.mean(0)).squeeze(1)


def test_a_loss_in_which_samples_see_each_other_is_refused():
    with pytest.raises(TrainingError, match="one by one"):
        Clipped(WholeModel(Centred(), loss="squared"), 1.0).sums(words_batch(6))


def test_batch_statistics_are_refused():
    model = WholeModel(nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), loss="logistic")
    with pytest.raises(TrainingError, match="BatchNorm1d"):
        Clipped(model, 1.0)


class Network(nn.Module):
    """Layers that Opacus knows."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(30, 8)
        self.fc, self.norm, self.group = nn.Linear(8, 12), nn.LayerNorm(12), nn.GroupNorm(3, 6)
        self.conv, self.out = nn.Conv1d(12, 6, 3), nn.Linear(6 * 4, 1)

    def forward(self, words):
        """Return one score a sample."""
        hidden = self.norm(torch.relu(self.fc(self.rows(words))))
        return self.out(self.group(self.conv(hidden.transpose(1, 2))).flatten(1)).squeeze(1)


def test_norms_and_sums_are_those_of_opacus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule
    torch.manual_seed(3)
    module, batch = Network(), words_batch(8)
    model = WholeModel(module, loss="logistic")
    clipped = Clipped(model, 0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
        scores = theirs(batch.words)
        nn.functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum").backward()
    gradients = {name.removeprefix("_module."): each.grad_sample for name, each in theirs.named_parameters()}
    norms = sum(each.flatten(1).square().sum(1) for each in gradients.values()).sqrt()
    factors = (0.6 / norms).clamp(max=1.0)

    assert int((factors < 1).sum()) > 0
    np.testing.assert_allclose(one_by_one(model, batch, 1.0)[1], norms, rtol=1e-5)
    assert_same(clipped.sums(batch), {name: torch.tensordot(factors, each, dims=1) for name, each in gradients.items()})
