"""A user's module runs as it is; only dividing it into layers has conditions."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.models import Auc, LayerGraph, ModelError, WholeModel, as_graph, as_whole, evaluate, load_whole
from tests.models.makers import make_batch, make_model

BATCH = make_batch("ctr-dnn")
NUM_DENSE = BATCH.dense.shape[1]


class Dropping(nn.Module):
    """Drops by the mode it is in, in two ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.fc = nn.Linear(NUM_DENSE, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(dense)
        if self.how == "function":
            hidden = functional.dropout(hidden, 0.5, training=self.training)
        if self.how == "branch" and self.training:
            hidden = hidden * (torch.rand(hidden.shape) > 0.5)
        return self.out(hidden)


@pytest.mark.parametrize("how", ["function", "branch"])
def test_training_and_evaluation_are_what_the_module_says(how):
    model = WholeModel(Dropping(how), loss="logistic")

    model.train()
    assert not torch.equal(model.predict(BATCH), model.predict(BATCH))
    model.eval()
    assert torch.equal(model.predict(BATCH), model.predict(BATCH))
    assert torch.equal(model.predict(BATCH), model.module.out(model.module.fc(BATCH.dense)))


@pytest.mark.parametrize("how", ["function", "branch"])
def test_what_differs_in_training_is_refused_with_its_line_where_a_model_is_divided(how):
    model = Dropping(how)

    with pytest.raises(
        ModelError, match=r"other things in training than in evaluation: line \d+ of test_whole.py"
    ) as e:
        as_graph(model)

    assert {"function": "functional.dropout", "branch": "torch.rand"}[how] in str(e.value)
    assert model.training


def test_a_module_of_its_own_for_dropout_can_be_divided():
    graph = as_graph(nn.Sequential(nn.Linear(NUM_DENSE, 4), nn.Dropout(0.5), nn.Linear(4, 1)))

    assert torch.equal(graph.eval().predict(BATCH), graph.predict(BATCH))


class Unruly(nn.Module):
    """All that a cut cannot have: raw parameters, buffers, a layer used twice, a branch on a value, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((NUM_DENSE,), 0.5))
        self.register_buffer("shift", torch.ones(NUM_DENSE))
        self.again = nn.Linear(NUM_DENSE, NUM_DENSE)
        self.tied = nn.Linear(NUM_DENSE, NUM_DENSE)
        self.tied.weight = self.again.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, dense: torch.Tensor, scale_up: float = 2.0) -> torch.Tensor:
        hidden = self.again(self.again(dense * self.scale + self.shift))
        if hidden.sum() > 0:
            hidden = -hidden
        return self.tied(hidden).sum(dim=1) * scale_up


def test_whatever_runs_is_run():
    module = Unruly()
    model = WholeModel(module, loss="logistic")

    assert model.reads_of() == ("dense",)
    assert torch.equal(model.predict(BATCH), module(BATCH.dense))
    expected = functional.binary_cross_entropy_with_logits(module(BATCH.dense), BATCH.labels, reduction="sum")
    assert model(BATCH).item() == pytest.approx(expected.item())


def test_a_sequence_may_use_a_layer_twice():
    layer = nn.Linear(NUM_DENSE, NUM_DENSE)
    sequence = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(NUM_DENSE, 1))

    assert torch.equal(WholeModel(sequence).predict(BATCH), sequence(BATCH.dense))
    assert [tie[1:] for tie in as_graph(sequence).ties()] == [("linear0", "linear2")] * 2
    assert torch.equal(as_graph(sequence).predict(BATCH), sequence(BATCH.dense))


class OneArgument(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(NUM_DENSE, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class TwoArguments(OneArgument):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_a_single_argument_of_any_name_gets_the_numbers():
    module = OneArgument()

    assert torch.equal(WholeModel(module).predict(BATCH), module(BATCH.dense))
    assert WholeModel(module).reads_of() == ("dense",)


def test_arguments_are_further_fields_of_a_batch_by_name():
    x = torch.rand(BATCH.num_samples, NUM_DENSE)
    with_x = dataclasses.replace(BATCH, extra={"x": x})
    module, two = OneArgument(), TwoArguments()

    assert torch.equal(WholeModel(module).predict(with_x), module(x))
    assert torch.equal(WholeModel(two).predict(with_x), two(x, BATCH.ids))
    assert torch.equal(WholeModel(nn.Sequential(module.fc)).predict(with_x), module(x))
    assert WholeModel(module).reads_of(["x"]) == ("x",)
    assert WholeModel(two).reads_of(["x"]) == ("x", "ids")
    with pytest.raises(AttributeError, match="a batch has no field `x`"):
        WholeModel(two).predict(BATCH)


def test_samples_count_by_their_weights():
    module = OneArgument()
    weights = torch.linspace(0.0, 3.0, BATCH.num_samples)
    counted = type(BATCH)(**BATCH.present() | {"weights": weights})
    each = functional.binary_cross_entropy_with_logits(module(BATCH.dense)[:, 0], BATCH.labels, reduction="none")

    assert WholeModel(module, loss="logistic")(counted).item() == pytest.approx((each * weights).sum().item(), rel=1e-5)
    graph = make_model("ctr-dnn")
    halves = [graph(type(BATCH)(**BATCH.present() | {"weights": part})) for part in (weights, 1.0 - weights)]
    assert sum(halves).item() == pytest.approx(graph(BATCH).item(), rel=1e-5)


def test_a_copy_calls_its_own_module():
    model = WholeModel(OneArgument(), loss="squared")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.module.fc.bias.add_(1.0)
        assert torch.allclose(other.predict(BATCH), model.predict(BATCH) + 1.0, atol=1e-5)


def test_a_model_without_a_loss_answers_and_cannot_be_trained():
    model = as_whole(OneArgument())

    assert 0.0 < evaluate(model, [BATCH], Auc()) < 1.0
    with pytest.raises(ModelError, match="has no loss"):
        model(BATCH)


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(3, width)
        nn.init.constant_(self.fc.weight, 7.0)

    def forward(self, dense):
        return self.fc(dense[:, :3]).sum(dim=1)

def build(width=2):
    return Net(width)
"""


def test_a_model_by_name_keeps_the_values_that_its_maker_gave_it(tmp_path):
    (tmp_path / "own.py").write_text(OWN)

    model = load_whole(f"{tmp_path / 'own.py'}:build", width=4)

    assert model.module.fc.weight.tolist() == [[7.0] * 3] * 4
    assert isinstance(load_whole("ctr-dnn", num_rows=10, width=2, hidden=[4]), LayerGraph)
