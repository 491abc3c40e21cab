"""How many threads a run computes in goes by what its model has to compute, and by nothing that is measured."""

import pytest
import torch
from torch import nn

from dovetail.models.load import load_model
from dovetail.runtime.model.work import OperationCounter
from dovetail.runtime.trainer.one_process import FLOPS_A_THREAD, threads_of
from dovetail.spec.run import Run, RunModel, RunTraining, RunWorker
from tests.runtime.runs import clicks


class Wide(nn.Module):
    """A table, a product with a raw parameter, and a tower."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(240, 6, sparse=True)
        self.weight, self.bias = nn.Parameter(torch.ones(2, 24, 24)), nn.Parameter(torch.zeros(1, 24))
        self.tower = nn.Linear(24, 5)

    def forward(self, ids):
        first = self.table(ids).flatten(1)
        for weight in self.weight:
            first = first * (first @ weight + self.bias)
        return self.tower(first)


def counted(model, *inputs):
    """Return the work of one forward pass in evaluation, a sample."""
    with torch.no_grad(), OperationCounter(model) as work:
        model.eval()(*inputs)
    return work.of_each(len(inputs[0]))


def test_products_are_counted_and_look_ups_and_sums_are_not():
    # Two products of a vector of 24 with a square matrix, one with 24 x 5: two operations for each number of a matrix.
    assert counted(Wide(), torch.zeros(10, 4, dtype=torch.int64)) == 2 * (2 * 24 * 24 + 24 * 5)


def test_a_convolution_counts_for_every_place_of_an_image():
    # 3 x 3 x 2 inputs for each of 4 outputs at 8 x 8 places.
    model = nn.Conv2d(2, 4, 3, padding=1)

    assert counted(model, torch.zeros(5, 2, 8, 8)) == 2 * 3 * 3 * 2 * 4 * 8 * 8


def test_nothing_is_known_of_a_model_that_does_what_has_no_formula():
    assert counted(nn.LSTM(3, 4, batch_first=True), torch.zeros(5, 7, 3)) is None


def test_a_model_of_the_zoo_is_counted_as_it_is_tried():
    schema = clicks(num_samples=10).schema
    graph = load_model("ctr-dnn", seed=1, schema=schema, num_rows=240, width=4, hidden=[16, 8])
    layers = [layer.weight.numel() for layer in graph.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad(), OperationCounter(graph) as work:
        graph.eval().predict(clicks(num_samples=10).read(0, 10))

    assert len(layers) == 3
    assert work.of_each(10) == 2 * sum(layers)


@pytest.mark.parametrize(
    ("flops", "threads"),
    [(None, 4), (0.0, 1), (FLOPS_A_THREAD / 300 * 1.5, 1), (FLOPS_A_THREAD / 300 * 2, 2), (FLOPS_A_THREAD, 4)],
)
def test_each_thread_has_enough_to_do(flops, threads):
    before = torch.get_num_threads()
    run = Run(model=RunModel(name="own"), training=RunTraining(batch=100))
    torch.set_num_threads(4)
    try:
        assert threads_of(run, flops) == threads
    finally:
        torch.set_num_threads(before)


def test_who_says_how_many_gets_them():
    run = Run(model=RunModel(name="own"), training=RunTraining(batch=100), workers=[RunWorker(threads=3)])

    assert threads_of(run, 0.0) == 3
