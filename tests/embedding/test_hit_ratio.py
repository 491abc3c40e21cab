"""The hit ratio that is foretold, against what a tier does."""

import numpy as np
import pytest

from dovetail.embedding import Table
from dovetail.embedding.tiers.hit_ratio import by_parts, hit_ratio, least_rows


def test_nothing_seen_foretells_nothing():
    assert hit_ratio(np.array([5]), 10) == 0.0
    assert by_parts(np.empty(0, dtype=np.int32)) == []


def test_rows_that_all_come_in_every_batch_are_hits_where_there_is_room():
    rows_by_count = np.bincount([9] * 50 + [10] * 50)
    assert hit_ratio(rows_by_count, 100) == pytest.approx(1.0)
    assert hit_ratio(rows_by_count, 50) == pytest.approx(500 / 950)  # those seen 10 times
    assert hit_ratio(rows_by_count, 0) == 0.0


def test_a_larger_tier_never_has_less():
    rng = np.random.default_rng(0)
    ratios = [ratio for _, ratio in by_parts(rng.zipf(1.5, size=2000).clip(max=500).astype(np.int32))]
    assert ratios == sorted(ratios)
    assert ratios[-1] < 1


def test_the_least_tier_for_a_ratio_reaches_it_and_one_row_less_does_not():
    rows_by_count = np.bincount(np.random.default_rng(2).zipf(1.5, size=2000).clip(max=500))
    for ratio in (0.1, 0.5, 0.8):
        rows = least_rows(rows_by_count, ratio)
        assert hit_ratio(rows_by_count, rows) >= ratio > hit_ratio(rows_by_count, rows - 1)
    assert least_rows(rows_by_count, 0.0) == 0
    assert least_rows(rows_by_count, 0.999) is None


@pytest.mark.parametrize("part", [0.1, 0.3, 1.0])
def test_what_is_foretold_is_near_to_what_a_device_has(part):
    rng = np.random.default_rng(1)
    batches = [np.minimum(rng.zipf(1.2, size=300), 200_000) for _ in range(160)]
    _, seen = np.unique(np.concatenate([np.unique(keys) for keys in batches[:110]]), return_counts=True)
    rows = int(part * len(seen))
    with Table(width=2, device="cpu", device_bytes=1 << 24, device_rows=rows) as table:
        for number, keys in enumerate(batches):
            if number == 110:
                before = table.on_device.moved()
            table.on_device.look_up(keys).release()
        measured = (table.on_device.moved() - before).hit_ratio
    assert hit_ratio(np.bincount(seen), rows) == pytest.approx(measured, abs=0.04)
