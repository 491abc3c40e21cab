"""Row optimizers against plain NumPy, and against PyTorch where it has the same one."""

import numpy as np
import pytest
import torch

from dovetail.embedding import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamPerRow,
    RowWiseAdagrad,
    Table,
    TableError,
    make_row_optimizer,
)
from dovetail.embedding.row_optimizer import described
from tests.embedding.twins import DictTable, assert_same

OPTIMIZERS = [
    SGD(learning_rate=0.1),
    Adagrad(learning_rate=0.1, first_sum=0.1),
    RowWiseAdagrad(learning_rate=0.1),
    Adam(learning_rate=0.01),
    AdamPerRow(learning_rate=0.01),
    FTRL(learning_rate=0.1, l1=0.05, l2=0.01),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_kernel_gives_the_bits_of_its_numpy_twin(optimizer):
    random = np.random.default_rng(1)
    model = DictTable(width=5, optimizer=optimizer, seed=3)
    with Table(width=5, optimizer=optimizer, seed=3) as table:
        for _ in range(20):
            keys = random.integers(-8, 8, 12)
            gradients = random.normal(size=(12, 5)).astype(np.float32)
            assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            table.update(keys, gradients)
            model.update(keys.tolist(), gradients)
        assert_same(table, model)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(learning_rate=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Adagrad(learning_rate=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
        (AdamPerRow(learning_rate=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    ],
    ids=["sgd", "adagrad", "adam-per-row"],
)
def test_a_row_moves_as_under_the_optimizer_of_pytorch(ours, theirs):
    with Table(width=4, optimizer=ours) as table:
        weight = torch.nn.Parameter(torch.from_numpy(table.lookup([7])))
        optimizer = theirs([weight])
        for step in range(10):
            gradient = np.sin(np.arange(4, dtype=np.float32) + step)[None]
            table.update([7], gradient)
            weight.grad = torch.from_numpy(gradient)
            optimizer.step()
        np.testing.assert_allclose(table.lookup([7]), weight.detach().numpy(), rtol=2e-5)


def test_ftrl_with_a_large_l1_makes_rows_exactly_zero():
    with Table(width=3, optimizer=FTRL(l1=100.0)) as table:
        table.update([1], np.ones((1, 3)))

        assert (table.lookup([1]) == 0).all()


def test_an_optimizer_can_be_written_down_and_made_again():
    for optimizer in OPTIMIZERS:
        assert make_row_optimizer(**described(optimizer)) == optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_row_optimizer("adagrat"),
        lambda: make_row_optimizer("sgd", momentum=0.9),
        lambda: SGD(learning_rate=0.0),
        lambda: Adam(beta1=1.0),
        lambda: Adagrad(epsilon=float("nan")),
    ],
)
def test_settings_that_cannot_train_are_refused_with_a_hint(make):
    with pytest.raises(TableError) as caught:
        make()
    assert caught.value.hint
