"""Rows that lie with several workers are those of one table, however batches are cut and whoever asks."""

import numpy as np
import pytest

from dovetail.embedding import SGD, Table
from dovetail.runtime.trainer.sharded.row_exchange import RowExchange, exchange_keys
from dovetail.runtime.worker.rows.keys import look_up
from tests.runtime.trainer.sharded.members import together

WIDTHS = (3, 5)


def tables(rank=0, size=1, widths=WIDTHS):
    """Return one worker's part of tables; by default all of them."""
    return [
        Table(width=width, optimizer=SGD(learning_rate=0.5), seed=number, shard=rank, num_shards=size)
        for number, width in enumerate(widths)
    ]


def asked_by(rank, widths=WIDTHS):
    """Return keys that a worker asks each table for, some of them several times; the last worker asks for nothing."""
    if rank == 2:
        return [np.zeros(0, dtype=np.int64) for _ in widths]
    draw = np.random.default_rng(rank)
    return [draw.integers(0, 40, 30 + 7 * number) for number, _ in enumerate(widths)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("widths", [WIDTHS, (4,)], ids=["two tables", "one table"])
def test_every_worker_gets_the_rows_that_it_asks_for(tmp_path, size, widths):
    def work(group):
        asked = asked_by(group.rank, widths)
        wanted = [look_up(number, keys, size) for number, keys in enumerate(asked)]
        exchange = exchange_keys(group, wanted)
        rows, _ = RowExchange(group, tables(group.rank, size, widths)).rows(exchange)
        return [each.numpy()[one.places] for each, one in zip(rows, wanted, strict=True)]

    found = together(tmp_path, size, work)

    for rank, of_rank in enumerate(found):
        for table, keys, rows in zip(tables(widths=widths), asked_by(rank, widths), of_rank, strict=True):
            np.testing.assert_array_equal(rows, table.lookup(keys))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("widths", [WIDTHS, (4,)], ids=["two tables", "one table"])
def test_gradients_of_a_row_are_summed_over_all_workers_and_step_it_once(tmp_path, size, widths):
    def work(group):
        mine = tables(group.rank, size, widths)
        asked = asked_by(group.rank, widths)
        wanted = [look_up(number, keys, size) for number, keys in enumerate(asked)]
        exchange = exchange_keys(group, wanted)
        swap = RowExchange(group, mine)
        _, wheres = swap.rows(exchange)
        # Each use of a key has a gradient of 1: whole numbers have one sum.
        uses = [np.bincount(one.places, minlength=len(one.keys)).astype(np.float32) for one in wanted]
        sums = swap.gradients(exchange, [np.repeat(u[:, None], w, 1) for u, w in zip(uses, widths, strict=True)])
        for table, owned, total, where in zip(mine, exchange.owned, sums, wheres, strict=True):
            table.update_distinct(owned.keys, total, where=where)
        return [(np.sort(table.keys()), table.rows(np.sort(table.keys()))) for table in mine]

    found = together(tmp_path, size, work)

    for number, whole in enumerate(tables(widths=widths)):
        keys = np.concatenate([asked_by(rank, widths)[number] for rank in range(size)])
        whole.lookup(keys)
        whole.update(keys, np.ones((len(keys), widths[number]), dtype=np.float32))
        all_keys = np.concatenate([of_rank[number][0] for of_rank in found])
        assert sorted(all_keys) == sorted(whole.keys())
        np.testing.assert_array_equal(np.concatenate([of_rank[number][1] for of_rank in found]), whole.rows(all_keys))


def test_a_round_that_nobody_asks_in_is_none(tmp_path):
    nothing = [look_up(0, np.zeros(0, dtype=np.int64), 2)]

    found = together(tmp_path, 2, lambda group: exchange_keys(group, nothing, asks=False))

    assert found == [None, None]


def test_a_worker_that_asks_for_nothing_takes_part_in_a_round_of_others(tmp_path):
    def work(group):
        keys = np.arange(10 if group.rank == 0 else 0)
        exchange = exchange_keys(group, [look_up(0, keys, 2)], asks=group.rank == 0)
        return sorted(exchange.owned[0].keys)

    found = together(tmp_path, 2, work)

    assert sorted(found[0] + found[1]) == list(range(10))


def test_everyone_gathers_the_same(tmp_path):
    found = together(tmp_path, 3, lambda group: group.gather(b"x" * group.rank))

    assert found == [[b"", b"x", b"xx"]] * 3
