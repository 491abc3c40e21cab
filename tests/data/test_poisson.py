"""Batches drawn by chance: every sample with its chance in every step, and any part of a step read alone."""

import hashlib
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dovetail.data.clicks import Clicks
from dovetail.data.errors import DataError
from dovetail.data.loader import Loader
from dovetail.data.poisson import PoissonOrder, _log, _log_of_rest
from dovetail.privacy.keys import derived

KEY = bytes(range(32))


def order(num_samples: int, batch: int, *, key: bytes = KEY, epoch: int = 0, block_samples: int = 64) -> PoissonOrder:
    return PoissonOrder(num_samples=num_samples, batch=batch, key=key, epoch=epoch, block_samples=block_samples)


@pytest.mark.parametrize(("num_samples", "batch"), [(50, 5), (37, 30), (1000, 1), (20, 20)])
def test_every_sample_is_in_a_step_with_its_chance_whatever_the_others_do(num_samples, batch):
    steps, drawn = 4000, order(num_samples, batch)
    found = np.zeros((steps, num_samples))
    for step in range(steps):
        found[step, drawn.step_samples(step)] = 1.0

    chance = batch / num_samples
    each = found.mean(axis=0)
    if chance == 1.0:
        assert np.all(each == 1.0)
        return
    # Sample by sample, and neighbours together: means of independent draws.
    total = float((((each - chance) ** 2) * steps / (chance * (1 - chance))).sum())
    assert 1e-4 < stats.chi2.cdf(total, num_samples) < 1 - 1e-4
    together = (found[:, 1:] * found[:, :-1]).mean()
    assert together == pytest.approx(chance**2, abs=5 * chance / math.sqrt(steps * num_samples) + 1e-9)
    sizes = found.sum(axis=1)
    assert sizes.var() == pytest.approx(num_samples * chance * (1 - chance), rel=0.15)


@pytest.mark.parametrize(("num_samples", "batch"), [(1000, 37), (100_000, 3), (513, 400)])
def test_a_step_has_the_samples_that_plain_python_draws(num_samples, batch):
    drawn = order(num_samples, batch, epoch=3).step_samples(7).tolist()

    stream = hashlib.shake_256(derived(KEY, "samples", 3, 7)).digest(8 * 4 * num_samples)
    expected, place, number = [], -1, 0
    while True:
        bits = int.from_bytes(stream[8 * number : 8 * number + 8], "little") >> 12
        place += 1 + math.floor(math.log((bits + 0.5) / 2**52) / math.log1p(-batch / num_samples))
        if place >= num_samples:
            break
        expected.append(place)
        number += 1
    assert drawn == expected


@given(st.integers(1, 400), st.integers(1, 400), st.lists(st.integers(0, 400), max_size=6), st.integers(0, 9))
def test_parts_of_a_step_make_up_the_step(num_samples, batch, cuts, step):
    batch = min(batch, num_samples)
    drawn = order(num_samples, batch)
    begin = step * batch

    bounds = sorted({0, batch, *(cut % (batch + 1) for cut in cuts)})
    parts = [drawn.sample_ids(begin + a, begin + b) for a, b in pairwise(bounds)]

    assert np.concatenate(parts).tolist() == drawn.step_samples(step).tolist()
    whole = [drawn.step_samples(each).tolist() for each in range(step + 1)]
    assert drawn.sample_ids(0, begin + batch).tolist() == [sample for each in whole for sample in each]


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 70))
def test_blocks_hold_the_samples_that_are_read_from_them(num_samples, batch, block_samples):
    batch = min(batch, num_samples)
    drawn = order(num_samples, batch, block_samples=block_samples)

    found = [
        stretch.first_sample + pick for stretch in drawn.stretches(0, 2 * batch) for pick in stretch.picks.tolist()
    ]

    assert found == drawn.sample_ids(0, 2 * batch).tolist()
    assert all(
        pick < stretch.last_sample - stretch.first_sample
        for stretch in drawn.stretches(0, 2 * batch)
        for pick in stretch.picks
    )


def test_other_steps_epochs_and_keys_draw_others():
    drawn = [
        order(5000, 50).step_samples(0),
        order(5000, 50).step_samples(1),
        order(5000, 50, epoch=1).step_samples(0),
        order(5000, 50, key=bytes(32)).step_samples(0),
    ]

    assert len({each.tobytes() for each in drawn}) == 4
    assert order(5000, 50).step_samples(0).tolist() == drawn[0].tolist()


def test_logarithms_are_those_of_the_library_to_rounding():
    values = np.concatenate([np.random.default_rng(0).random(10_000), 2.0 ** -np.arange(1.0, 53.0), [1 - 2**-53]])

    assert _log(values) == pytest.approx(np.log(values), rel=1e-14, abs=1e-16)
    rates = [1e-9, 1e-4, 0.1, 0.25, 0.3, 0.9, 1 - 1e-9]
    assert [_log_of_rest(rate) for rate in rates] == pytest.approx([math.log1p(-rate) for rate in rates], rel=1e-13)


@pytest.mark.parametrize(("num_samples", "batch"), [(None, 5), (10, 11), (10, 0)])
def test_what_nothing_can_be_drawn_from_is_refused(num_samples, batch):
    with pytest.raises(DataError, match="batches of"):
        PoissonOrder(num_samples=num_samples, batch=batch, key=KEY)


class ByRanges:
    """The same samples from a source that reads ranges alone."""

    def __init__(self, inner):
        self.schema, self.num_samples, self.read = inner.schema, inner.num_samples, inner.read


@pytest.mark.parametrize("wrap", [lambda source: source, ByRanges])
def test_a_loader_reads_the_drawn_samples_and_an_empty_step_as_an_empty_batch(wrap):
    source = wrap(Clicks(num_slots=3, num_multi_valued=1, num_dense=2, rows_per_slot=20, num_samples=300))
    drawn = order(300, 2, epoch=1)
    loader = Loader(source, batch_size=2, order=drawn, epoch=1, num_samples=300)
    sizes = [len(drawn.step_samples(step)) for step in range(40)]
    assert 0 in sizes

    for step, size in enumerate(sizes):
        batch = loader.read(2 * step, 2 * step + 2)
        assert batch.num_samples == size
        assert (batch.sample_ids - 300).tolist() == drawn.step_samples(step).tolist()
        assert batch.dense.shape[1] == 2
