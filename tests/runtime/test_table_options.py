"""Options of PyTorch's embeddings over servers: padding, norms of rows and weights of ids end where PyTorch ends."""

import copy
import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from dovetail.embedding import Table, make_row_optimizer
from dovetail.models import as_graph
from dovetail.runtime import restore_into, train
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.one_process import in_one_process
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.run import with_settings
from tests.runtime.any_model import NUM_SLOTS, ROWS, Labelled, by_pytorch, clicked, make_run, train_here
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAGRAD, cut
from tests.runtime.runs import train as train_cut
from tests.runtime.test_equality import assert_equals

PADDING = 3  # among the ids of the first slot


class Rows(nn.Module):
    """One vector an id."""

    takes = ("ids",)

    def __init__(self, **options):
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True, **options)
        self.out = nn.Linear(NUM_SLOTS * 4, 1)

    def forward(self, ids):
        return self.out(self.table(ids.view(-1, NUM_SLOTS)).flatten(1))


class Bags(nn.Module):
    """One vector a sample: of all its ids, some more often than others where they have weights."""

    takes = ("ids",)

    def __init__(self, weighted=False, **options):
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, 4, sparse=True, **options)
        self.out = nn.Linear(4, 1)
        self.weighted = weighted

    def forward(self, ids):
        ids = ids.view(-1, NUM_SLOTS)
        weights = 0.5 + (ids % 3).float() if self.weighted else None
        return self.out(self.table(ids, per_sample_weights=weights))


def logistic(scores, batch):
    return functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels, reduction="sum")


CASES = {
    "padded": (Rows, {"padding_idx": PADDING}),
    "padded-bags": (Bags, {"padding_idx": PADDING, "mode": "mean"}),
    "last-is-padding": (Rows, {"padding_idx": -1}),
    "weighted-bags": (Bags, {"weighted": True, "padding_idx": PADDING, "mode": "sum"}),
    "limited": (Rows, {"max_norm": 0.2}),
    "limited-sizes": (Bags, {"max_norm": 0.3, "norm_type": 1.0, "mode": "sum"}),
    "limited-and-padded": (Rows, {"max_norm": 0.1, "padding_idx": PADDING}),
}


FAST = replace(ADAGRAD, learning_rate=0.1)


def made(case):
    kind, options = CASES[case]
    torch.manual_seed(4)
    return kind(**options)


@pytest.mark.parametrize("case", list(CASES))
def test_rows_end_where_those_of_pytorch_end(tmp_path, case):
    model, source = made(case), Labelled(clicked)
    run = make_run(optimizer=FAST)

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    alone = by_pytorch(run, model, source, logistic)
    assert_equals(tmp_path / "run", alone)
    if (padding := model.table.padding_idx) is not None:
        assert padding not in alone.tables[0].touched
    restored = restore_into(made(case), tmp_path / "run")
    torch.testing.assert_close(restored.table.weight, model.table.weight, rtol=2e-5, atol=2e-6)


def test_spread_over_workers_they_end_there_too(tmp_path):
    model, source = made("limited-and-padded"), Labelled(clicked)
    run = make_run(optimizer=FAST, micro_batch=33)

    train(copy.deepcopy(model), source, run=run, folder=tmp_path / "run", workers=2)

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, logistic))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_a_table_scales_rows_down_as_pytorch_does_before_it_steps_them(norm_type):
    keys, values = np.arange(50), torch.randn(50, 6)
    with Table(width=6, optimizer=make_row_optimizer("sgd", learning_rate=0.5)) as table:
        table.fill(keys, values.numpy())
        table.limit_norms(1.5, norm_type=norm_type)
        table.update(keys, np.ones((50, 6), dtype=np.float32))

        expected = torch.embedding_renorm_(values, torch.from_numpy(keys), 1.5, norm_type) - 0.5
        np.testing.assert_allclose(table.lookup(keys), expected.numpy(), rtol=1e-5, atol=1e-6)


class Looks(nn.Module):
    """A layer of a sequence that looks ids up."""

    reads = ("ids",)

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True, padding_idx=PADDING, max_norm=0.2)

    def forward(self, ids):
        return self.table(ids.view(-1, NUM_SLOTS)).flatten(1)


@pytest.mark.slow
def test_cut_into_stages_they_end_there_too(tmp_path):
    torch.manual_seed(4)
    model, source = nn.Sequential(Looks(), nn.Linear(4 * NUM_SLOTS, 1)), Labelled(clicked)
    run = cut(make_run(optimizer=FAST), 0, 2, workers=(1, 1))

    train_cut(run, tmp_path / "run", model=copy.deepcopy(model), source=source)

    alone = OneProcess(run, as_graph(model), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


def test_the_padding_of_rows_on_a_device_is_zeros_too(tmp_path):
    model, source = made("padded"), Labelled(clicked)
    run = make_run(optimizer=FAST)
    device = with_settings(run, {"table.place": "device", "table.device": "cpu"}, place="test")

    prepare(in_one_process(device), tmp_path / "run", model=copy.deepcopy(model), source=source)
    with Trainer(tmp_path / "run", model=copy.deepcopy(model), source=source) as alone:
        alone.wait()

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, logistic))


class Shared(Rows):
    def __init__(self):
        super().__init__(padding_idx=PADDING)
        self.other = nn.Embedding(ROWS, 4, sparse=True)
        self.other.weight = self.table.weight


class Dense(Rows):
    def __init__(self):
        super().__init__(max_norm=1.0)
        self.table.sparse = False


class Filled(Rows):
    def __init__(self):
        super().__init__(padding_idx=PADDING)
        nn.init.constant_(self.table.weight, 1.0)


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        (Shared, {}, r"`table` and `other` share their rows, and padding_idx is 3 and None"),
        (Dense, {}, r"`table` has max_norm and is a dense parameter"),
        (Filled, {}, r"`table` has other numbers than zeros in the row of its padding_idx, 3"),
        (lambda: Rows(max_norm=1.0), {"table.place": "device"}, r"`table` has max_norm, and .* on a device"),
    ],
)
def test_what_servers_cannot_keep_is_refused_before_anything_starts(tmp_path, kind, settings, complaint):
    run = with_settings(make_run(), settings, place="test")

    with pytest.raises(TrainingError, match=complaint) as caught:
        prepare(run, tmp_path / "run", model=kind(), source=Labelled(clicked))

    assert caught.value.hint
