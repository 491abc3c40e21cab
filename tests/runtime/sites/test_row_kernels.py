"""Kernels of exchanges, against the same in NumPy; and where rounds end."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.runtime.sites.changes import RowDeltas, RowProgress, Rule, SiteChange, combined_rows
from dovetail.runtime.sites.join import SomeRows, warm_up
from tests.runtime.sites.meeting import Meeting, Site


def deltas(random, count):
    keys = np.sort(random.choice(64, count, replace=False))
    return RowDeltas(keys, random.standard_normal((count, 4)).astype(np.float32))


@pytest.mark.parametrize("counts", [(30,), (0, 0), (0, 9), (9, 0), (20, 40), (64, 64, 5)])
def test_changes_of_sites_are_added_up_key_by_key(counts):
    random = np.random.default_rng(3)
    parts = [SiteChange(10, np.zeros(1, dtype=np.float32), [deltas(random, count)]) for count in counts]

    keys, total = combined_rows(parts, 0, Rule(linear_rows=False, sums=False))

    expected = np.zeros((64, 4), dtype=np.float32)
    for part in parts:
        expected[part.tables[0].keys] += part.tables[0].values
    np.testing.assert_array_equal(keys, np.unique(np.concatenate([part.tables[0].keys for part in parts])))
    np.testing.assert_array_equal(total, expected[keys])


def test_a_row_of_this_site_that_an_exchange_does_not_change_is_not_on_its_way_any_more():
    rows, progress = SomeRows(), RowProgress(4)
    progress.touch(np.arange(3), rows)
    rows.write(np.arange(3), np.ones((3, 4), dtype=np.float32))
    told = progress.rest(rows)
    progress.cut(told)

    progress.agree((np.array([1, 7]), np.full((2, 4), 5, dtype=np.float32)), told, rows)

    assert progress.index.count == 0
    np.testing.assert_array_equal(rows.read(np.array([0, 1, 2, 7]))[:, 0], [0, 5, 0, 5])


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 2, 1])
def test_what_an_exchange_needs_is_made_ready_in_any_width(bits):
    warm_up(bits)


@pytest.mark.parametrize(
    ("last_step", "cuts"), [(19, [8, 19]), (20, [8, 16, 20]), (21, [8, 16, 21]), (24, [8, 16, 24]), (3, [3])]
)
def test_a_short_last_round_is_part_of_the_one_before(tmp_path: Path, last_step, cuts):
    site = Site(Meeting(1, every=8), 0, tmp_path, last_step=last_step)
    none = np.empty(0, dtype=np.int64)
    found = []
    for step in range(last_step):
        site.step(none, np.empty((0, site.store.table.read(none).shape[1]), dtype=np.float32), 0, now_s=float(step))
        site.outer_step.go_on(float(step))
        if site.outer_step.last_cut == step + 1:
            found.append(step + 1)

    assert found == cuts
