"""The arithmetic of exchanges, against sums by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.runtime.sites.changes import RowDeltas, Rule, SiteChange, combined_rows
from tests.runtime.sites.meeting import NUM_DENSE, NUM_ROWS, WIDTH, Meeting, Site, settle

SUMS = Rule(linear_rows=True, sums=True)
Change = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_change(random: np.random.Generator) -> Change:
    """Return whole numbers: their sums are exact in float32."""
    keys = np.unique(random.integers(0, NUM_ROWS, 12))
    rows = random.integers(-3, 4, (len(keys), WIDTH)).astype(np.float32)
    return keys, rows, random.integers(-3, 4, NUM_DENSE).astype(np.float32)


def total_of(changes: list[Change]) -> tuple[np.ndarray, np.ndarray]:
    """Return what all changes come to, summed one by one."""
    rows = np.repeat(np.arange(NUM_ROWS, dtype=np.float32)[:, None], WIDTH, axis=1)
    dense = np.zeros(NUM_DENSE, dtype=np.float32)
    for keys, delta, of_dense in changes:
        rows[keys] += delta
        dense += of_dense
    return rows, dense


def table_of(site: Site) -> np.ndarray:
    return site.store.table.read(np.arange(NUM_ROWS))


def run_all(sites: list[Site], num_steps: int, each: Callable[[int], None] = lambda _: None) -> list[Change]:
    """Step every site so often, with a look at exchanges now and then."""
    random = np.random.default_rng(5)
    changes = []
    for step in range(num_steps):
        each(step)
        for site in sites:
            change = random_change(random)
            changes.append(change)
            site.step(*change, now_s=float(step))
            if random.random() < 0.6:
                site.outer_step.go_on(float(step))
        for site in sites:
            while site.outer_step.is_held:
                for other in sites:
                    other.outer_step.go_on(float(step))
    settle(sites, float(num_steps))
    return changes


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("num_sites", [1, 2, 3])
def test_every_change_of_every_site_is_in_the_union_once(tmp_path: Path, num_sites: int, ahead: int) -> None:
    meeting = Meeting(num_sites, every=4)
    sites = [Site(meeting, n, tmp_path, last_step=22, rule=SUMS, ahead=ahead) for n in range(num_sites)]
    rows, dense = total_of(run_all(sites, 22))
    for site in sites:
        assert site.outer_step.is_finished
        np.testing.assert_array_equal(table_of(site), rows)
        np.testing.assert_array_equal(site.store.values, dense)


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_sites_end_with_the_same_bits_whatever_is_rounded_away(tmp_path: Path, bits: int) -> None:
    meeting = Meeting(3, every=4)
    rule = Rule(linear_rows=False, sums=False)
    sites = [Site(meeting, n, tmp_path, last_step=30, bits=bits, rule=rule, rate=0.7, momentum=0.9) for n in range(3)]
    run_all(sites, 30)
    for site in sites[1:]:
        np.testing.assert_array_equal(table_of(site), table_of(sites[0]))
        np.testing.assert_array_equal(site.store.values, sites[0].store.values)
    assert not np.array_equal(table_of(sites[0]), table_of(Site(meeting, 0, tmp_path / "new", last_step=1)))


def test_a_base_is_the_same_everywhere_after_every_exchange(tmp_path: Path) -> None:
    meeting = Meeting(2, every=3)
    sites = [Site(meeting, n, tmp_path, last_step=40, bits=4, rate=0.7, momentum=0.9) for n in range(2)]
    bases: dict[int, list[np.ndarray]] = {}

    def note(_: int) -> None:
        for site in sites:
            found = bases.setdefault(site.outer_step.exchanges, [])
            found.append(site.outer_step.dense.base.copy())

    run_all(sites, 40, note)
    assert len(bases) > 5
    for found in bases.values():
        for base in found[1:]:
            np.testing.assert_array_equal(base, found[0])


def test_a_site_that_is_cut_off_goes_on_alone_and_its_work_counts_when_it_is_back(tmp_path: Path) -> None:
    meeting = Meeting(3, every=2)
    sites = [Site(meeting, n, tmp_path, last_step=40, rule=SUMS) for n in range(3)]
    random = np.random.default_rng(1)
    changes = []
    for step in range(40):
        now_s = 4.0 * step
        meeting.cut_off = {2} if 10 <= step < 30 else set()
        for site in sites:
            changes.append(random_change(random))
            site.step(*changes[-1], now_s=now_s)
        later_s = now_s
        while any(site.outer_step.is_held for site in sites):
            later_s += 0.5
            for site in sites:
                site.outer_step.go_on(later_s)
        if step == 29:
            assert len(meeting.made) > 10
            assert sites[2].outer_step.exchanges < len(meeting.made)
            assert any("goes on alone" in word for word in sites[2].words)
    settle(sites, 200.0)
    rows, dense = total_of(changes)
    for site in sites:
        np.testing.assert_array_equal(table_of(site), rows)
        np.testing.assert_array_equal(site.store.values, dense)


def test_a_site_that_does_its_steps_again_counts_once(tmp_path: Path) -> None:
    # The second site loses everything after step 30 and begins at step 0 again, with its journal of rounds alone.
    meeting = Meeting(2, every=4)
    sites = [Site(meeting, n, tmp_path, last_step=40, rule=SUMS) for n in range(2)]
    random = np.random.default_rng(2)
    changes = [[random_change(random) for _ in range(40)] for _ in range(2)]

    def steps(site: int, first: int, last: int) -> None:
        for step in range(first, last):
            sites[site].step(*changes[site][step], now_s=float(step))
            for each in sites:
                each.outer_step.go_on(float(step))

    for step in range(30):
        steps(0, step, step + 1)
        steps(1, step, step + 1)
    made = len(meeting.made)
    assert made >= 6
    sites[1] = Site(meeting, 1, tmp_path, last_step=40, rule=SUMS)
    steps(1, 0, 30)
    for step in range(30, 40):
        steps(0, step, step + 1)
        steps(1, step, step + 1)
    settle(sites, 100.0)
    rows, dense = total_of(changes[0] + changes[1])
    for site in sites:
        assert site.outer_step.is_finished
        np.testing.assert_array_equal(table_of(site), rows)
        np.testing.assert_array_equal(site.store.values, dense)


def test_with_one_step_a_round_the_mean_of_sgd_steps_is_a_step_on_the_union(tmp_path: Path) -> None:
    meeting = Meeting(2, every=1)
    sites = [Site(meeting, n, tmp_path, last_step=6, ahead=0) for n in range(2)]
    changes = run_all(sites, 6)
    halves = [(keys, rows / 2, dense / 2) for keys, rows, dense in changes]
    rows, dense = total_of(halves)
    for site in sites:
        np.testing.assert_allclose(table_of(site), rows, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(site.store.values, dense, rtol=1e-6, atol=1e-6)


def part(keys: list[int], *, samples: int, value: float) -> SiteChange:
    values = np.full((len(keys), 1), value, dtype=np.float32)
    return SiteChange(samples, np.zeros(0, dtype=np.float32), [RowDeltas(np.array(keys, dtype=np.int64), values)])


def test_changes_of_rows_whose_optimizer_divides_by_gradients_are_added_up() -> None:
    parts = [part([1, 2], samples=10, value=1.0), part([2, 3], samples=30, value=3.0)]
    keys, change = combined_rows(parts, 0, Rule(linear_rows=False, sums=False))
    assert keys.tolist() == [1, 2, 3]
    assert change[:, 0].tolist() == [1.0, 4.0, 3.0]


def test_rows_of_sgd_change_by_the_mean_over_samples() -> None:
    parts = [part([1, 2], samples=10, value=1.0), part([2], samples=30, value=5.0)]
    _, change = combined_rows(parts, 0, Rule(linear_rows=True, sums=False))
    assert change[:, 0].tolist() == pytest.approx([0.25, 4.0])
