"""Batches of distinct keys: the same bits in any number of threads, wherever rows lie and have moved to."""

import numpy as np
import pytest

from dovetail.embedding import Adam, Table, TableError, thread_pool
from dovetail.embedding.thread_pool import RowThreads


@pytest.mark.parametrize("host_rows", [None, 3000])
def test_threads_give_the_bits_of_one_thread_wherever_rows_lie(tmp_path, monkeypatch, host_rows):
    monkeypatch.setattr(thread_pool, "FEWEST", 64)
    draw, found = np.random.default_rng(0), []
    steps = [draw.choice(5000, size=1500, replace=False) for _ in range(30)]
    gradients = [draw.normal(size=(1500, 5)).astype(np.float32) for _ in steps]
    for threads in (1, 4):
        how = {"width": 5, "optimizer": Adam(), "host_rows": host_rows, "segment_bytes": 20_000, "threads": threads}
        with Table(**how, folder=tmp_path / str(threads)) as table:
            seen = []
            wheres = {}
            for number, keys in enumerate(steps):
                values, wheres[number] = table.lookup_distinct(keys)
                seen.append(values)
                late = max(0, number - 2)  # rows may have moved since these were looked up
                table.update_distinct(steps[late], gradients[late].copy(), scale=0.25, where=wheres[late])
            stats = table.stats()
            assert (stats.num_evicted > 0) == (host_rows is not None)
            found.append((np.concatenate(seen).tobytes(), table.rows(np.arange(5000)).tobytes()))

    assert found[0] == found[1]


def test_rows_that_have_not_moved_are_not_searched_for_again(tmp_path):
    with Table(width=2, folder=tmp_path / "rows") as table:
        keys = np.arange(10)
        _, where = table.lookup_distinct(keys)
        table.lookup(np.arange(10, 40))  # new rows move none
        assert table.still_holds(where)

        operation = table._store.clock.operation
        table.update_distinct(keys, np.ones((10, 2), dtype=np.float32), where=where)
        assert table._store.clock.operation == operation

        table.expire(min_count=2)
        assert not table.still_holds(where)


def test_gradients_that_cannot_be_written_are_left_as_they_are():
    gradients = np.ones((3, 2), dtype=np.float32)
    gradients.flags.writeable = False
    with Table(width=2) as table, Table(width=2) as other:
        table.update_distinct([1, 2, 3], gradients, scale=0.5)
        other.update([1, 2, 3], gradients * np.float32(0.5))

        assert table.rows([1, 2, 3]).tobytes() == other.rows([1, 2, 3]).tobytes()
    assert gradients.min() == 1


def test_what_one_of_several_threads_raises_comes_out_when_all_have_ended():
    done = []

    def work(first, last):
        if first == 2:
            raise ValueError("the third")
        done.append((first, last))

    four = RowThreads(4, fewest=1)
    with pytest.raises(ValueError, match="the third"):
        four.share(4, work)
    four.close()

    assert sorted(done) == [(0, 1), (1, 2), (3, 4)]


def test_a_table_without_threads_is_refused():
    with pytest.raises(TableError, match="threads 0"):
        Table(width=2, threads=0)
