"""Noise that rows owe: one draw for many steps is distributed as noise at every step, and drawn once alone."""

import numpy as np
import pytest
from scipy import stats

from dovetail.privacy.owed import OwedNoise

KEY = bytes(range(1, 33))
WIDTH = 5


def deviation(step):
    """Return a rate that warms up and falls, times a deviation."""
    return 0.3 * min(step / 4, 2 / step)


def owed(*, key=KEY, looked_at=(), table=0):
    """Return what a table's rows owe."""
    noise = OwedNoise(key, stream="s", table=table, deviation=deviation)
    for step in looked_at:
        noise.step = step
        noise.save()
    return noise


def zeros(num_rows):
    """Return rows of zeros, never settled, with their keys."""
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, num_rows)
    return np.zeros((num_rows, WIDTH + 1), dtype=np.float32), np.arange(num_rows, dtype=np.int32), keys


def at_every_step(num_rows, steps, *, key=KEY):
    """Return what noise at each of some steps comes to."""
    rows, slots, keys = zeros(num_rows)
    for step in range(1, steps + 1):
        owed(key=key).settle(rows, slots, keys, WIDTH, step=step)
    return rows[:, :WIDTH]


@pytest.mark.parametrize(("steps", "looked_at"), [(2, ()), (11, ()), (11, (3, 4, 9)), (40, (1, 39))])
def test_one_draw_is_distributed_as_noise_at_every_step(steps, looked_at):
    rows, _, keys = zeros(6000)
    late = owed(key=bytes(32), looked_at=looked_at)
    late.step = steps
    late.add_to(rows[:, :WIDTH], keys, np.zeros(len(keys), dtype=np.float32))
    values = rows[:, :WIDTH].astype(np.float64)

    assert stats.ks_2samp(values.ravel(), at_every_step(6000, steps).ravel()).pvalue > 1e-3
    # The sum of independent normal numbers, by hand.
    expected = sum(deviation(step) ** 2 for step in range(1, steps + 1)) ** 0.5
    assert stats.kstest(values.ravel() / expected, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(values.T) - np.eye(WIDTH)).max() < 0.06


def test_a_row_that_is_read_and_then_stepped_has_what_was_read_and_the_noise_of_the_step():
    rows, slots, keys = zeros(50)
    noise = owed(looked_at=(3,))
    noise.step = 7
    read = rows[:, :WIDTH].copy()
    noise.read(read, keys, rows, slots)
    again = rows[:, :WIDTH].copy()
    noise.read(again, keys, rows, slots)
    noise.settle(rows, slots, keys, WIDTH, step=8)
    fresh = np.concatenate([read, np.full((50, 1), 7, dtype=np.float32)], axis=1)
    owed(looked_at=(3, 7)).settle(fresh, slots, keys, WIDTH, step=8)

    assert read.tobytes() == again.tobytes()
    assert rows.tobytes() == fresh.tobytes()
    assert (rows[:, WIDTH] == 8).all()


def test_a_checkpoint_ends_a_stretch_so_what_it_shows_is_a_part_of_what_comes_later():
    rows, slots, keys = zeros(4000)
    noise = owed()
    noise.step = 5
    noise.save()
    shown, later = (rows[:, :WIDTH].copy() for _ in range(2))
    noise.read(shown, keys, rows, slots)
    noise.step = 12
    noise.read(later, keys, rows, slots)

    since = (later - shown).ravel().astype(np.float64)
    assert abs(np.corrcoef(since, shown.ravel())[0, 1]) < 0.03
    expected = sum(deviation(step) ** 2 for step in range(6, 13)) ** 0.5
    assert stats.kstest(since / expected, "norm").pvalue > 1e-3


def test_stretches_that_do_not_overlap_are_drawn_apart_and_rows_and_tables_too():
    def of(since, step, *, table=0, shift=0):
        rows, _, keys = zeros(3000)
        noise = owed(table=table)
        noise.step = step
        noise.add_to(rows[:, :WIDTH], keys + shift, np.full(len(keys), since, dtype=np.float32))
        return rows[:, :WIDTH].ravel()

    one = of(0, 4)
    for other in (of(4, 8), of(3, 4), of(0, 5), of(0, 4, table=1), of(0, 4, shift=1)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_a_row_gets_no_noise_of_a_step_twice():
    rows, slots, keys = zeros(20)
    owed().settle(rows, slots, keys, WIDTH, step=3)
    before = rows.copy()
    owed().settle(rows, slots, keys, WIDTH, step=3)

    assert rows.tobytes() == before.tobytes()


def test_a_stream_that_begins_later_goes_on_from_what_was_looked_at():
    before = owed(looked_at=(2, 6))
    after = OwedNoise(
        KEY, stream="t", table=0, deviation=lambda _: 0.5, looks=before.looks, first_step=before.looks[-1].step
    )
    rows, _, keys = zeros(5000)
    never = np.zeros(len(keys), dtype=np.float32)
    shown, later = rows[:, :WIDTH].copy(), rows[:, :WIDTH].copy()
    before.add_to(shown, keys, never)
    again = rows[:, :WIDTH].copy()
    after.add_to(again, keys, never)
    after.step = 10
    after.add_to(later, keys, never)

    assert again.tobytes() == shown.tobytes()
    since = (later - shown).ravel().astype(np.float64)
    assert stats.kstest(since / (0.5 * 4**0.5), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(since, shown.ravel())[0, 1]) < 0.03
