"""The layer against nn.EmbeddingBag with the same values."""

import numpy as np
import pytest
import torch

from dovetail.embedding import SGD, Adagrad, Table, TableEmbedding, TableError


def bag_of(table, num_rows, mode):
    weight = torch.from_numpy(table.lookup(np.arange(num_rows)))
    return torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode=mode, include_last_offset=True)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_training_equals_embedding_bag_with_the_same_optimizer(mode, tmp_path):
    torch.manual_seed(0)
    with Table(width=4, optimizer=Adagrad(learning_rate=0.1), host_rows=7, folder=tmp_path) as table:
        theirs = bag_of(table, 20, mode)
        ours = TableEmbedding(table, num_slots=2, mode=mode)
        optimizer = torch.optim.Adagrad(theirs.parameters(), lr=0.1)
        for _ in range(10):
            offsets = torch.tensor([0, 3, 4, 4, 9])
            ids = torch.randint(0, 20, (9,))
            target = torch.randn(2, 8)
            loss = ((ours(ids, offsets) - target) ** 2).sum()
            loss.backward()
            optimizer.zero_grad()
            expected = ((theirs(ids, offsets).view(2, 8) - target) ** 2).sum()
            expected.backward()
            optimizer.step()
            torch.testing.assert_close(loss, expected)
        np.testing.assert_allclose(table.lookup(np.arange(20)), theirs.weight.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_some_slots_alone_are_looked_up_and_trained():
    with Table(width=2, optimizer=SGD(learning_rate=1.0)) as table:
        layer = TableEmbedding(table, num_slots=3, first_slot=1, last_slot=2)
        ids, offsets = torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([0, 1, 3, 3, 4, 5, 6])
        out = layer(ids, offsets)
        out.sum().backward()

        assert out.shape == (2, 2)
        assert sorted(table.keys().tolist()) == [2, 3, 5]


def test_evaluation_makes_no_rows_and_shows_first_values():
    with Table(width=2) as table:
        layer = TableEmbedding(table).eval()
        out = layer(torch.tensor([1, 2]), torch.tensor([0, 1, 2]))
        assert len(table) == 0
        layer.train()
        assert torch.equal(layer(torch.tensor([1, 2]), torch.tensor([0, 1, 2])), out)
        assert layer.rows(torch.tensor([[1, 2], [2, 1]])).shape == (2, 2, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: TableEmbedding(table, mode="max"),
        lambda table: TableEmbedding(table, num_slots=2, first_slot=2),
        lambda table: TableEmbedding(table, num_slots=2)(torch.tensor([1]), torch.tensor([0, 1])),
        lambda table: TableEmbedding(table)(torch.tensor([1]), torch.tensor([0, 2])),
        lambda table: TableEmbedding(table).look_up(torch.tensor([1]), torch.tensor([0, 5])),
        lambda table: table.lookup_bags([1], np.array([0]), np.array([9])),
        lambda table: table.update_bags([1], np.array([-1]), np.array([1]), np.ones((1, 2))),
    ],
)
def test_bags_that_do_not_fit_are_refused(wrong):
    with Table(width=2) as table, pytest.raises(TableError) as caught:
        wrong(table)
    assert caught.value.hint
