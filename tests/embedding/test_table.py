"""Look-ups, updates, pooling, budgets and what is refused."""

import time

import numpy as np
import pytest

from dovetail.embedding import SGD, Adagrad, Table, TableError, first_values, look_ahead, shard_of
from tests.embedding.twins import DictTable, assert_same, first_row


def small_table(tmp_path, num_rows=3, **settings):
    """Return a table with room for `num_rows` in RAM, and files of a few records."""
    return Table(width=4, host_rows=num_rows, folder=tmp_path, segment_bytes=300, **settings)


def test_first_values_depend_on_seed_and_key_alone():
    keys = np.array([5, -(2**63), 2**63 - 1, 0], dtype=np.int64)
    expected = np.array([first_row(int(key), 3, 9, 0.5) for key in keys])

    assert first_values(keys, width=3, seed=9, scale=0.5).tobytes() == expected.tobytes()
    with Table(width=3, seed=9, scale=0.5) as table:
        assert table.lookup(keys[::-1]).tobytes() == expected[::-1].tobytes()
    assert not np.array_equal(first_values(keys, width=3, seed=8, scale=0.5), expected)


def test_first_values_are_uniform_within_the_scale():
    values = first_values(np.arange(20_000), width=4, seed=0, scale=2.0)

    assert values.min() >= -2
    assert values.max() < 2
    assert abs(values.mean()) < 0.02
    assert np.histogram(values, bins=8, range=(-2, 2))[0] == pytest.approx(10_000, rel=0.05)


def test_equal_keys_of_a_batch_are_summed_and_stepped_once():
    with Table(width=2, optimizer=Adagrad(learning_rate=1.0)) as table:
        before = table.lookup([4])
        table.update([4, 4], [[1.0, 2.0], [2.0, 2.0]])

        # One step by g = (3, 4): the sums of squares are 9 and 16, so both values move by 1.
        np.testing.assert_allclose(before - table.lookup([4]), 1.0, rtol=1e-6)
        assert table.rows([4])[0, 2:].tolist() == [9.0, 16.0]


@pytest.mark.parametrize("num_rows", [2, 1000])
def test_bags_are_summed_averaged_and_may_be_empty(tmp_path, num_rows):
    with small_table(tmp_path, num_rows) as table:
        rows = table.lookup([1, 2, 3])
        got = table.lookup_pooled([1, 2, 3, 1], [0, 2, 2, 4])
        mean = table.lookup_pooled([1, 2, 3, 1], [0, 2, 2, 4], mode="mean")

        assert got.tobytes() == np.array([rows[0] + rows[1], np.zeros(4), rows[2] + rows[0]], np.float32).tobytes()
        assert (
            mean.tobytes()
            == np.array([(rows[0] + rows[1]) / 2, np.zeros(4), (rows[2] + rows[0]) / 2], np.float32).tobytes()
        )


@pytest.mark.parametrize("num_rows", [2, 1000])
def test_the_gradient_of_a_bag_reaches_each_of_its_keys(tmp_path, num_rows):
    with small_table(tmp_path, num_rows, optimizer=SGD(learning_rate=1.0)) as table:
        keys, offsets = [1, 2, 1, 3], [0, 2, 4]
        before = table.lookup([1, 2, 3])
        table.update_pooled(keys, offsets, [[2.0] * 4, [4.0] * 4], mode="mean")

        np.testing.assert_allclose(before - table.lookup([1, 2, 3]), [[3.0] * 4, [1.0] * 4, [2.0] * 4], rtol=1e-6)


def test_a_look_up_without_insert_shows_first_values_and_makes_no_row(tmp_path):
    with small_table(tmp_path) as table:
        values = table.lookup([1, 2, 1], insert=False)
        pooled = table.lookup_pooled([1, 2], [0, 2], insert=False)

        assert len(table) == 0
        assert values.tobytes() == table.lookup([1, 2, 1]).tobytes()
        assert pooled.tobytes() == (values[:1] + values[1:2]).tobytes()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 40])
def test_any_budget_gives_the_bits_of_a_dict_and_is_kept(tmp_path, num_rows):
    random = np.random.default_rng(num_rows)
    model = DictTable(width=4, optimizer=Adagrad(), ageing_lookups=97)
    with small_table(tmp_path, num_rows, ageing_lookups=97) as table:
        for _ in range(150):
            keys = np.minimum(random.zipf(1.3, 20), 200) * 1_000_003
            gradients = random.normal(size=(20, 4)).astype(np.float32)
            assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            table.update(keys, gradients)
            model.update(keys.tolist(), gradients)
        stats = table.stats()
        assert_same(table, model)
        assert stats.host_rows <= num_rows
        assert stats.disk_rows + stats.host_rows == stats.num_rows == len(model.rows)


def test_memory_stays_within_the_budget_while_the_index_grows(tmp_path):
    model = DictTable(width=4, optimizer=Adagrad())
    with Table(width=4, host_bytes=60_000, folder=tmp_path, segment_bytes=3000) as table:
        for start in range(0, 900, 20):
            keys = np.arange(start, start + 20) * 7919
            table.lookup(keys)
            table.update(keys, np.ones((20, 4)))
            model.lookup(keys.tolist())
            model.update(keys.tolist(), np.ones((20, 4), dtype=np.float32))
            stats = table.stats()
            assert stats.memory_bytes <= stats.budget_bytes
        assert stats.disk_rows > stats.host_rows > 0
        assert_same(table, model)
        with pytest.raises(TableError, match="while it grows"):
            table.lookup(np.arange(20_000))
        assert_same(table, model)


def test_dead_records_are_cleared_away(tmp_path):
    with small_table(tmp_path) as table:
        for step in range(200):
            keys = np.arange(40)
            table.update(keys, np.full((40, 4), step, dtype=np.float32))
        record_bytes = 4 * (4 + 8)

        assert table.stats().disk_bytes <= (2 * 40 + 2 * 300 // record_bytes + 10) * record_bytes


def test_a_key_seen_once_does_not_push_out_a_hot_one(tmp_path):
    with small_table(tmp_path, 200) as table:
        hot = np.arange(50)
        for step in range(30):
            table.lookup(hot)
            table.lookup(np.arange(1000 + 10 * step, 1010 + 10 * step))
        before = table.stats().num_fetched
        table.lookup(hot)

        assert table.stats().num_evicted > 0
        assert table.stats().num_fetched == before == 0


def test_prefetched_rows_wait_for_their_batch(tmp_path):
    with small_table(tmp_path, 250) as table:
        table.lookup(np.arange(300))
        wanted = np.arange(20)
        table.prefetch(wanted, ahead=3).result(timeout=100)
        before = table.stats().num_fetched
        table.lookup(np.arange(1000, 1090))
        table.lookup(wanted)

        assert table.stats().num_fetched == before


def test_look_ahead_changes_no_bit(tmp_path):
    random = np.random.default_rng(0)
    batches = [random.integers(0, 300, 30) for _ in range(40)]
    model = DictTable(width=4, optimizer=Adagrad())
    with small_table(tmp_path, 60) as table:
        for keys in look_ahead(batches, table, keys=lambda batch: batch, depth=3):
            assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            gradients = np.ones((30, 4), dtype=np.float32)
            table.update(keys, gradients)
            model.update(keys.tolist(), gradients)
        assert_same(table, model)


def test_expiry_by_age_and_by_count_and_its_log(tmp_path):
    log = tmp_path / "keys.log"
    with small_table(tmp_path, key_log=log) as table:
        table.lookup([1, 2, 3])
        table.lookup([2])
        for _ in range(5):
            table.update([9], np.ones((1, 4)))
        table.lookup([3])
        assert sorted(table.expire(max_age_steps=4).tolist()) == [1, 2, 9]
        assert table.expire(min_count=3).tolist() == [3]
        assert len(table) == 0
    assert {line for line in log.read_text().splitlines() if "expired" in line} == {
        *("5,expired,1", "5,expired,2", "5,expired,9", "5,expired,3")
    }


def test_keys_of_other_shards_are_refused():
    keys = np.arange(100)
    mine = keys[shard_of(keys, 3) == 1]
    with Table(width=2, shard=1, num_shards=3) as table:
        table.lookup(mine)
        with pytest.raises(TableError, match="does not belong to shard 1 of 3"):
            table.lookup(keys)
    assert 20 < len(mine) < 50


def test_a_full_host_tier_without_a_disk_says_what_to_do():
    with Table(width=4, host_rows=10) as table:
        with pytest.raises(TableError, match="no disk tier") as caught:
            table.lookup(np.arange(40))
        assert "folder" in caught.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.lookup([1.5]),
        lambda t: t.lookup([[1]]),
        lambda t: t.update([1, 2], np.ones((1, 4))),
        lambda t: t.update([1], np.ones((1, 3))),
        lambda t: t.lookup_pooled([1, 2], [0, 1]),
        lambda t: t.lookup_pooled([1, 2], [0, 3, 2]),
        lambda t: t.lookup_pooled([1], [0, 1], mode="max"),
        lambda t: Table(width=0),
        lambda t: Table(width=2, shard=2, num_shards=2),
        lambda t: Table(width=4, host_bytes=100),
        lambda t: Table(width=4, folder="x", cold_precision="fp4"),
        lambda t: list(look_ahead([], t, keys=list, depth=0)),
    ],
)
def test_wrong_requests_are_refused_with_a_hint(wrong):
    with Table(width=4) as table:
        with pytest.raises(TableError) as caught:
            wrong(table)
        assert caught.value.hint


def test_a_closed_table_says_so(tmp_path):
    table = small_table(tmp_path)
    table.lookup(np.arange(30))
    table.close()
    table.close()

    with pytest.raises(TableError, match="closed"):
        table.lookup([1])
    assert not list(tmp_path.iterdir())


def test_write_back_beside_the_caller_changes_no_bit(tmp_path):
    random = np.random.default_rng(2)
    model = DictTable(width=4, optimizer=Adagrad())
    with Table(width=4, host_rows=1200, folder=tmp_path) as table:
        for _ in range(15):
            time.sleep(0.003)  # a caller who does something else in between
            keys = random.integers(0, 3000, 500)
            gradients = random.normal(size=(500, 4)).astype(np.float32)
            assert table.lookup(keys).tobytes() == model.lookup(keys.tolist()).tobytes()
            table.update(keys, gradients)
            model.update(keys.tolist(), gradients)
        assert_same(table, model)
        assert table.stats().num_evicted > 0
