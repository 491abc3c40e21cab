"""Models whose forward uses buffers and parameters itself are divided into layers, and profiled, like any other."""

import pytest
import torch
from torch import nn

from dovetail.errors import DovetailError
from dovetail.models.load import as_graph
from dovetail.profiler.layers import measure_layers
from tests.runtime.runs import clicks


class Normalised(nn.Module):
    """Shifts and scales its numbers by tensors of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.5, 1.0, 2.0]))
        self.scale = nn.Parameter(torch.full((3,), 0.1))
        self.tower = nn.Linear(3, 1)

    def forward(self, dense):
        return self.tower((dense - self.shift) * torch.exp(self.scale) / self.shift.abs())


def test_what_is_divided_into_layers_gives_the_answers_and_gradients_of_the_whole():
    torch.manual_seed(0)
    model, batch = Normalised(), clicks(num_samples=50).read(0, 50)
    graph = as_graph(model, loss="logistic")
    answers = graph.predict(batch).reshape(-1)
    graph(batch).backward()
    by_layers = model.scale.grad.clone()
    model.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(
        model(batch.dense).reshape(-1), batch.labels.float().reshape(-1), reduction="sum"
    ).backward()

    torch.testing.assert_close(answers, model(batch.dense).reshape(-1))
    torch.testing.assert_close(by_layers, model.scale.grad)


def test_its_layers_can_be_measured():
    graph = as_graph(Normalised(), loss="logistic")
    batches = [clicks(num_samples=64).read(0, 64)]

    assert len(measure_layers(graph, batches, optimizer="adam")) == len(graph.blocks)


def test_a_buffer_that_changes_is_read_when_the_layer_runs():
    model, batch = Normalised(), clicks(num_samples=50).read(0, 50)
    graph = as_graph(model, loss="logistic")
    model.shift += 1.0

    torch.testing.assert_close(graph.predict(batch).reshape(-1), model(batch.dense).reshape(-1))


def test_a_layer_of_nothing_but_parameters_is_refused_with_a_hint():
    class OfNothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, 3))
            self.inner, self.tower = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, dense):
            return self.tower(dense * self.inner(self.scale))

    with pytest.raises(DovetailError, match="of no field of the batch") as caught:
        as_graph(OfNothing(), loss="logistic")
    assert caught.value.hint
