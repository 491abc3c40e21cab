"""Rows that a worker keeps: found where they are, right where they are used, within their budget."""

import numpy as np
import pytest
import torch

from dovetail.runtime.blueprint import TableSpec
from dovetail.runtime.coordinator.pool_work import TaskPool
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages.parameters import NEW_ENOUGH, NOT_KEPT
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.runtime.worker.rows.row_cache import SLOT_BYTES, RowCache
from dovetail.spec.run import RunWorker
from tests.runtime.worker.makers import assign

WIDTH = 4
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


def tables(*sizes, width=WIDTH):
    """Return tables of so many rows each."""
    return [TableSpec(name=f"t{n}", width=width, num_rows=size, scale=0.1) for n, size in enumerate(sizes)]


def make_cache(specs, rows, *, device="cpu", staleness=None):
    """Return a cache for so many rows."""
    budget = rows * (4 * WIDTH + SLOT_BYTES)
    return RowCache(specs, budget, torch.device(device), staleness=staleness)


def test_a_budget_without_room_for_a_row_is_refused_with_what_a_row_takes(make_bench):
    with pytest.raises(TrainingError, match="cache_bytes is 10, which has no room for a row") as caught:
        make_bench(workers=[RunWorker(cache_bytes=10)])
    assert "bytes for each row" in caught.value.hint


def ask(cache, task, table, keys, value_of):
    """Look keys up as a pull does, of servers that send what is not kept, and all that is not new enough.

    Return the rows, and which of them came.
    """
    moment = cache.begin(task)
    kept = cache.find(table, keys, moment)
    came = kept.ages != NEW_ENOUGH if not cache.is_exact else kept.ages != NOT_KEPT + 1
    rows = np.full((len(keys), WIDTH), np.nan, dtype=np.float32)
    rows[came] = value_of(table, keys[came])
    (stays,) = np.nonzero(~came)
    values = cache.whole(table, rows, np.nonzero(came)[0], stays, kept.slots[stays], moment)
    cache.put(table, keys, values, np.nonzero(came)[0], moment)
    return values.cpu().numpy().copy(), came


def values_after(step):
    """Return what servers send after so many steps."""

    def value_of(table, keys):
        return np.repeat((keys + 1000 * table + 100_000 * step)[:, None], WIDTH, axis=1).astype(np.float32)

    return value_of


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("size", [1, 7, 40, 400])
def test_within_a_step_rows_are_those_of_the_servers_however_few_are_kept(device, size):
    rng = np.random.default_rng(size)
    cache = make_cache(tables(200, 100), size, device=device)
    num_kept = 0
    for step in range(30):
        for _ in range(4):
            table = int(rng.integers(2))
            keys = look_up(table, np.minimum(rng.zipf(1.3, 30), 90) + 9 * (step % 2), 1).keys
            found, came = ask(cache, assign(step=step), table, keys, values_after(step))
            np.testing.assert_array_equal(found, values_after(step)(table, keys))
            num_kept += int((~came).sum())

    assert (num_kept > 100) == (size >= 7)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_what_does_not_fit_is_left_out_and_what_is_used_often_stays(device):
    cache = make_cache(tables(1000), 10, device=device)
    hot = np.arange(5)
    for number in range(20):
        ask(cache, assign(step=3), 0, hot, values_after(3))
        ask(cache, assign(step=3), 0, np.arange(100 + 3 * number, 103 + 3 * number), values_after(3))

    _, came = ask(cache, assign(step=3), 0, hot, values_after(3))
    assert not came.any()
    found, came = ask(cache, assign(step=3), 0, np.arange(50, 90), values_after(3))
    assert came.all()
    np.testing.assert_array_equal(found, values_after(3)(0, np.arange(50, 90)))


def test_in_sync_a_server_is_told_how_many_steps_old_a_row_is_and_older_ones_come_again():
    cache = make_cache(tables(100), 100)
    keys = np.arange(3)
    ask(cache, assign(step=5), 0, keys, values_after(5))

    ages = [cache.find(0, keys, cache.begin(assign(step=step))).ages.tolist() for step in (5, 6, 7, 8, 4)]

    assert ages == [[1] * 3, [2] * 3, [3] * 3, [NOT_KEPT] * 3, [NOT_KEPT] * 3]


def clocks(clock, slowest, generation=1):
    """Return a task of ssp."""
    return type(assign())(
        generation=generation, step=0, task=0, epoch=0, ranges=(), is_open=False, clock=clock, slowest=slowest
    )


def test_in_ssp_a_row_is_used_until_the_worker_is_staleness_tasks_ahead_of_what_is_in_it():
    cache = make_cache(tables(100), 100, staleness=2)
    keys = np.arange(3)
    ask(cache, clocks(5, 4), 0, keys, values_after(0))  # of everyone, the first four tasks are in it

    def is_kept(clock, slowest):
        return bool((cache.find(0, keys, cache.begin(clocks(clock, slowest))).ages == NEW_ENOUGH).all())

    assert is_kept(5, 4)
    assert is_kept(6, 4)
    assert not is_kept(7, 5)  # the fifth task of somebody may be missing
    found, came = ask(cache, clocks(6, 5), 0, keys, values_after(1))
    assert not came.any()  # it is used, and is no newer for that
    np.testing.assert_array_equal(found, values_after(0)(0, keys))
    assert not is_kept(7, 6)


@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_in_ssp_every_row_has_the_tasks_of_everyone_in_it_that_staleness_asks_for(seed, staleness):
    # Rows say how many tasks of each worker are in them, as servers have applied them when they are fetched.
    rng, names, key = np.random.default_rng(seed), ["a", "b", "c", "d"], np.arange(1)
    pool = TaskPool(samples=10_000, epochs=1)
    caches = {name: make_cache(tables(10), 10, staleness=staleness) for name in names}
    applied, waiting, used, num_kept = dict.fromkeys(names, 0), [], 0, 0
    for name in names:
        pool.join(name)
    for _ in range(3000):
        name = names[int(rng.choice(4, p=[0.4, 0.3, 0.2, 0.1]))]
        if pool.held_by(name) < 2 and pool.may_begin(name, staleness):
            task = pool.take(name, 1, 0.0)
            waiting.append((name, task.number, pool.clocks_of(name), []))
        mine = [each for each in waiting if each[0] == name]
        if not mine:
            continue
        name, number, said, fetched = mine[0]
        if not fetched:
            row = np.array([applied[each] for each in names], dtype=np.float32)
            moment_of = clocks(*said)
            (found,), (came,) = ask(
                caches[name], moment_of, 0, key, lambda table, keys, row=row: row[None][: len(keys)]
            )
            assert found.min() >= said[0] - staleness
            fetched.append(found)
            used, num_kept = used + 1, num_kept + int(not came)
        elif rng.random() < 0.7:  # its gradients come, and count
            applied[name] += 1
            pool.accept("server-0", number, 1)
            waiting.remove(mine[0])

    assert used > 300
    assert num_kept > used / 10


def test_everything_is_dropped_with_a_generation_or_when_told_or_when_clocks_begin_anew():
    cache = make_cache(tables(100), 100, staleness=4)
    keys = np.arange(3)

    def came(task):
        return bool(ask(cache, task, 0, keys, values_after(0))[1].all())

    assert came(clocks(5, 5))
    assert not came(clocks(5, 5))
    assert came(clocks(5, 5, generation=2))
    cache.forget()
    assert came(clocks(5, 5, generation=2))
    assert not came(clocks(5, 5, generation=2))
    assert came(clocks(0, 0, generation=2))
    assert not came(clocks(4, 4, generation=2))


def test_a_budget_is_shared_by_widths_and_takes_no_more_than_the_tables_have():
    narrow, wide = tables(1000, width=4), tables(1000, width=60)
    both = RowCache([*narrow, *wide], 50 * (16 + 240 + 2 * SLOT_BYTES), torch.device("cpu"), staleness=None)
    assert [len(shelf.rows) for shelf in both._slabs.values()] == [50, 50]
    assert [len(shelf.rows) for shelf in make_cache(tables(30, 20), 1000)._slabs.values()] == [50]

    none = make_cache(tables(1000), 0)
    found, came = ask(none, assign(step=1), 0, np.arange(9), values_after(1))
    assert came.all()
    np.testing.assert_array_equal(found, values_after(1)(0, np.arange(9)))
