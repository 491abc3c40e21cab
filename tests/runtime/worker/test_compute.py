"""Computing over servers is what PyTorch's autograd does with the same weights in one piece."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.embedding.hashing import first_values
from dovetail.models.load import as_graph, load_model
from dovetail.runtime.blueprint import table_seed
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.worker.compute.computer import Computer
from dovetail.runtime.worker.dense.sync import ServerSync
from dovetail.runtime.worker.fetch import Fetcher
from dovetail.runtime.worker.tasks.task import FetchedBatch
from dovetail.spec.run import RunModel
from tests.runtime.one_process import OneProcess, sparse_weights
from tests.runtime.worker.makers import micro_batch

MODELS = {
    "ctr-dnn": {"num_rows": 240, "width": 4, "hidden": [16, 8]},
    "2emb": {"num_rows": 240, "width": 4, "hidden": [16, 8]},
}


def fetched_by(bench, first, last) -> FetchedBatch:
    """Return samples with their rows and dense parameters."""
    fetcher = Fetcher(
        bench.blueprint, bench.samples, bench.model, bench.lines(), ServerSync(bench.model), wanted=lambda task: True
    )
    return fetcher.fetch(fetcher.read(micro_batch(first, last)))


def compute(bench, fetched, **how):
    """Compute a micro-batch; what was not fetched ahead is fetched when it is needed."""
    bench.model.values.copy_(torch.from_numpy(fetched.dense))
    lines = bench.lines()
    return Computer(bench.model).compute(
        fetched.batch,
        fetched.rows,
        lambda wanted: lines.pull(1, 0, [wanted], dense=False, wanted=lambda: True).rows[0],
        where="here",
        **how,
    )


def by_autograd(bench, batch):
    """Return loss, dense gradients and the gradients of each table, by a model that holds all its weights itself."""
    options = {"schema": bench.source.schema, **bench.run.model.options}
    plain = load_model(bench.run.model.name, seed=bench.run.training.seed, **options)
    OneProcess(bench.run, plain, bench.source)  # gives the tables the servers' first values
    loss = plain(batch)
    loss.backward()
    tables = sparse_weights(plain)
    rows = [each.grad.to_dense() if each.grad.is_sparse else each.grad for each in tables]
    known = {id(each) for each in tables}
    dense = torch.cat([each.grad.reshape(-1) for each in plain.parameters() if id(each) not in known])
    return float(loss.detach()), dense.numpy(), [each.numpy() for each in rows]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("servers", [1, 3])
def test_loss_and_gradients_are_those_of_autograd(make_bench, name, servers):
    bench = make_bench(model=RunModel(name=name, options=MODELS[name]), servers=servers)
    fetched = fetched_by(bench, 20, 70)
    loss, dense, rows = by_autograd(bench, fetched.batch)

    computed = compute(bench, fetched)

    assert computed.loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(bench.model.gradients.numpy(), dense, rtol=1e-4, atol=1e-5)
    found = [np.zeros_like(each) for each in rows]
    for wanted, gradients in computed.rows:
        found[wanted.table][wanted.keys] += gradients
    for one, other in zip(found, rows, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_micro_batches_add_up_to_those_of_the_batch(make_bench):
    bench = make_bench(servers=2)
    whole = fetched_by(bench, 0, 60)
    loss = compute(bench, whole).loss
    once = bench.model.gradients.clone()
    bench.model.gradients.zero_()

    losses = [compute(bench, fetched_by(bench, first, first + 20)).loss for first in (0, 20, 40)]

    assert sum(losses) == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(bench.model.gradients, once, rtol=1e-4, atol=1e-5)


def test_rows_that_were_not_fetched_ahead_are_fetched_when_needed(make_bench):
    bench = make_bench(servers=2)
    fetched = fetched_by(bench, 0, 30)
    ahead = compute(bench, fetched)
    late = compute(bench, FetchedBatch(fetched.micro_batch, fetched.batch, [], fetched.dense, 0.0))

    assert late.loss == ahead.loss
    for (_, one), (_, other) in zip(late.rows, ahead.rows, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_sample_takes_is_known_after_the_first(make_bench):
    bench = make_bench()
    fetched = fetched_by(bench, 0, 40)
    computer = Computer(bench.model)
    assert computer.bytes_per_sample == 0.0
    computer.compute(fetched.batch, fetched.rows, lambda wanted: pytest.fail("all were ahead"), where="here")

    rows_bytes = sum(rows.nbytes for _, rows in fetched.rows)
    least = (fetched.batch.num_bytes + 2 * rows_bytes) / 40 + 4 * (16 + 8)  # one hidden layer's output and the next's
    assert least < computer.bytes_per_sample < 10 * least


def test_the_last_word_before_the_backward_pass_comes_before_any_gradient(make_bench):
    bench = make_bench()
    seen = []

    compute(bench, fetched_by(bench, 0, 10), before_backward=lambda: seen.append(bench.model.gradients.abs().sum()))

    assert seen == [0.0]
    assert bench.model.gradients.abs().sum() > 0


class Broken(nn.Module):
    """Has a loss that is no number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, dense):
        return self.layer(dense) / 0.0 * 0.0


def test_a_loss_that_is_no_number_says_where(make_bench):
    bench = make_bench(own=Broken())

    with pytest.raises(TrainingError, match="the loss is nan here"):
        compute(bench, fetched_by(bench, 0, 10))


class Bags(nn.Module):
    """Looks the batch's ids up by PyTorch's own layers."""

    def __init__(self, include_last_offset=True):
        super().__init__()
        self.bag = nn.EmbeddingBag(60 * 4, 4, mode="sum", sparse=True, include_last_offset=include_last_offset)
        self.top = nn.Linear(4 * 4, 1)

    def forward(self, ids, offsets):
        bags = self.bag(ids, offsets if self.bag.include_last_offset else offsets[:-1])
        return self.top(bags.view(-1, 16))


@pytest.mark.parametrize("include_last_offset", [True, False])
def test_pytorchs_own_bags_take_their_rows_from_servers(make_bench, include_last_offset):
    own = Bags(include_last_offset)
    plain = copy.deepcopy(own)
    bench = make_bench(own=own, data={"num_slots": 4, "num_multi_valued": 0, "num_dense": 3, "rows_per_slot": 60})
    fetched = fetched_by(bench, 0, 20)
    spec, seed = bench.blueprint.tables[0], table_seed(bench.run.training.seed, 0)
    with torch.no_grad():
        values = first_values(np.arange(spec.num_rows), width=spec.width, seed=seed, scale=spec.scale)
        plain.bag.weight.copy_(torch.from_numpy(values))
    as_graph(plain)(fetched.batch).backward()

    ((wanted, gradients),) = compute(bench, fetched).rows

    assert sorted(wanted.keys) == sorted(set(fetched.batch.ids.tolist()))
    expected = plain.bag.weight.grad.to_dense().numpy()[wanted.keys]
    np.testing.assert_allclose(gradients, expected, rtol=1e-4, atol=1e-6)
