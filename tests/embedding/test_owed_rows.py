"""Rows that owe noise: in every tier, across checkpoints and shards, and as if each step had touched them all."""

import numpy as np
import pytest
from scipy import stats

from dovetail.embedding import SGD, Table, TableError, shard_of
from dovetail.embedding.checkpoints.loading import saved_private
from dovetail.embedding.row_optimizer import PrivateSGD
from dovetail.privacy.owed import OwedNoise

KEY = bytes(range(7, 39))
WIDTH, NUM_KEYS, STEPS = 4, 60, 12
SETTINGS = {"learning_rate": 0.5, "deviation": 0.1, "schedule": "constant", "stream": "s"}


def private_table(folder, *, deviation=0.1, **settings):
    """Return a table whose rows owe noise."""
    owed = OwedNoise(KEY, stream="s", table=0, deviation=lambda _: deviation)
    return Table(width=WIDTH, optimizer=PrivateSGD(**SETTINGS), owed=owed, folder=folder, segment_bytes=400, **settings)


def train(table, first, last, *, seed=3):
    """Look some rows up at each step, as they are then, and step them; return what was read."""
    read = []
    for step in range(first, last):
        draw = np.random.default_rng(seed + step)
        keys = np.unique(draw.integers(0, NUM_KEYS, 9))
        at_step(table, step)
        table.begin_step(step + 1)
        values, where = table.lookup_distinct(keys)
        read.append(values.copy())
        table.update_distinct(keys, draw.normal(size=values.shape).astype(np.float32), scale=0.1, where=where)
    at_step(table, last)
    return read


def at_step(table, step):
    """Have rows read as they are after so many steps."""
    if table.owed is not None:
        table.owed.step = step


def values_of(table):
    """Return all rows as they are now, with what they owe."""
    return table.lookup(np.arange(NUM_KEYS), insert=False)


@pytest.mark.parametrize("settings", [{}, {"host_rows": 12}, {"host_rows": 5, "threads": 2}])
def test_rows_are_the_same_whichever_tier_they_lie_in(tmp_path, settings):
    with private_table(tmp_path / "a") as whole, private_table(tmp_path / "b", **settings) as small:
        one, other = train(whole, 0, STEPS), train(small, 0, STEPS)

        assert [each.tobytes() for each in one] == [each.tobytes() for each in other]
        assert values_of(whole).tobytes() == values_of(small).tobytes()


def test_rows_without_noise_are_stepped_as_by_sgd(tmp_path):
    plain = Table(width=WIDTH, optimizer=SGD(learning_rate=0.5))
    with private_table(tmp_path, deviation=0.0) as private, plain:
        train(private, 0, STEPS)
        train(plain, 0, STEPS)

        assert values_of(private).tobytes() == values_of(plain).tobytes()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_run_that_goes_on_from_a_checkpoint_has_the_noise_of_one_that_never_stopped(tmp_path, num_shards):
    with private_table(tmp_path / "a") as whole:
        train(whole, 0, 5)
        whole.save(tmp_path / "kept")
        at_checkpoint = values_of(whole)
        train(whole, 5, STEPS)
        shards = []
        for shard in range(num_shards):
            looks = saved_private(tmp_path / "kept").looks
            owed = OwedNoise(KEY, stream="s", table=0, deviation=lambda _: 0.1, looks=looks)
            place = {"shard": shard, "num_shards": num_shards}
            shards.append(Table.load(tmp_path / "kept", optimizer=PrivateSGD(**SETTINGS), owed=owed, **place))

        keys = np.arange(NUM_KEYS)
        owners = shard_of(keys, num_shards)
        for shard, table in enumerate(shards):
            mine = keys[owners == shard]
            assert table.lookup(mine, insert=False).tobytes() == at_checkpoint[mine].tobytes()
        if num_shards == 1:
            train(shards[0], 5, STEPS)
            assert values_of(shards[0]).tobytes() == values_of(whole).tobytes()
        for table in shards:
            table.close()


def test_rows_that_were_never_looked_up_have_the_noise_of_all_steps(tmp_path):
    keys = np.arange(1000, 6000)
    with private_table(tmp_path) as table:
        first = table.lookup(keys, insert=False)
        train(table, 0, 9)
        late = table.lookup(keys, insert=False)
        made = table.lookup(keys)

    assert made.tobytes() == late.tobytes()
    moved = (late - first).ravel().astype(np.float64)
    assert stats.kstest(moved / (0.1 * 3.0), "norm").pvalue > 1e-3


def test_rows_that_go_on_with_another_stream_have_what_they_owed_until_then(tmp_path):
    with private_table(tmp_path / "a") as table:
        train(table, 0, 5)
        table.save(tmp_path / "kept")
        at_checkpoint = values_of(table)
    looks = saved_private(tmp_path / "kept").looks
    before = OwedNoise(KEY, stream="s", table=0, deviation=lambda _: 0.1, looks=looks)
    after = OwedNoise(KEY, stream="t", table=0, deviation=lambda _: 0.0, looks=looks, first_step=5)
    optimizer = PrivateSGD(**SETTINGS | {"stream": "t", "first_step": 5})

    with Table.load(tmp_path / "kept", optimizer=optimizer, owed=after, before=before) as table:
        assert values_of(table).tobytes() == at_checkpoint.tobytes()
        at_step(table, 9)  # at rate 0 nothing has moved
        assert values_of(table).tobytes() == at_checkpoint.tobytes()


def test_owed_noise_is_refused_with_optimizers_whose_state_would_have_seen_it(tmp_path):
    owed = OwedNoise(KEY, stream="s", table=0, deviation=lambda _: 0.1)
    with pytest.raises(TableError, match="private-sgd"):
        Table(width=WIDTH, owed=owed, folder=tmp_path)
