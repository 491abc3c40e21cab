"""The generated click log: any range, real skew, a known best result."""

import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.data import Clicks, DataError, concatenate
from dovetail.data.clicks.popularity import MEAN_TABLE_LOOKUPS, rank_table, row_shares
from dovetail.data.clicks.source import FAMILIES, best_auc
from tests.data.makers import same

DATA = os.environ.get("DOVETAIL_DATA", "")


@pytest.mark.parametrize("truth", FAMILIES)
def test_a_sample_is_the_same_whatever_range_it_is_made_in(truth):
    source = Clicks(truth=truth, rows_per_slot=1000, seed=5)
    whole = source.read(1000, 1100)

    pieces = [source.read(1000, 1003), source.read(1003, 1004), source.read(1004, 1100)]

    assert same(concatenate(pieces), whole)


def test_threads_make_the_same_samples_as_one():
    source = Clicks(rows_per_slot=100)
    made = {}
    threads = [
        threading.Thread(target=lambda k=k: made.__setitem__(k, source.read(k * 500, k * 500 + 500))) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert same(concatenate([made[k] for k in range(4)]), source.read(0, 2000))


def test_unlike_seeds_make_unlike_samples():
    assert not torch.equal(Clicks(seed=1).read(0, 10).ids, Clicks(seed=2).read(0, 10).ids)


def test_the_best_auc_equals_the_sum_over_all_pairs():
    p = np.array([0.1, 0.4, 0.4, 0.9, 0.25])
    right = pairs = 0.0
    for i, j in itertools.permutations(range(5), 2):
        weight = p[i] * (1 - p[j])
        pairs += weight
        right += weight * (1.0 if p[i] > p[j] else 0.5 if p[i] == p[j] else 0.0)

    assert best_auc(p) == pytest.approx(right / pairs, rel=1e-12)


@pytest.mark.parametrize("truth", FAMILIES)
def test_the_true_probabilities_reach_the_best_auc_on_the_clicks_themselves(truth):
    source = Clicks(truth=truth, rows_per_slot=50)
    batch = source.read(0, 100_000)
    chance, clicked = source.probabilities(batch), batch.labels.numpy() > 0.5

    ranks = np.empty(chance.size)
    ranks[np.argsort(chance)] = np.arange(chance.size)
    num_clicked = clicked.sum()
    reached = (ranks[clicked].sum() - num_clicked * (num_clicked - 1) / 2) / num_clicked / (~clicked).sum()

    # The standard error of an AUC of 0.81 over 25,000 clicks and 75,000 others is about 0.0016.
    assert reached == pytest.approx(source.best_auc(100_000), abs=0.006)
    assert clicked.mean() == pytest.approx(0.25, abs=0.01)


def test_the_wanted_click_rate_and_shape_are_met():
    source = Clicks(click_rate=0.03, num_slots=5, num_multi_valued=2, mean_values=3.0, num_dense=7, rows_per_slot=9)
    batch = source.read(0, 50_000)

    lengths = batch.offsets.diff().reshape(-1, 5).float()
    assert batch.labels.mean() == pytest.approx(0.03, abs=0.005)
    assert batch.dense.shape == (50_000, 7)
    assert (lengths[:, :3] == 1).all()
    assert lengths[:, 3:].mean() == pytest.approx(3.0, abs=0.05)
    assert int(batch.ids.min()) == 0
    assert int(batch.ids.max()) == 5 * 9 - 1


def test_numbers_have_mean_zero_and_variance_one():
    dense = Clicks().read(0, 50_000).dense

    assert dense.mean(0).abs().max() < 0.025  # a standard error is 0.0045
    assert (dense.var(0) - 1).abs().max() < 0.04


def test_rows_come_as_often_as_their_shares_say():
    source = Clicks(num_slots=1, num_multi_valued=0, num_dense=0, rows_per_slot=20)
    counts = np.bincount(source.read(0, 100_000).ids.numpy(), minlength=20)

    shares = row_shares(20)
    assert shares.sum() == pytest.approx(1.0)
    assert abs(counts / 100_000 - shares).max() < 0.008  # five standard errors


def test_ranks_stay_within_the_table():
    for num_rows in (2, 1000, 65_536, 10_000_000):
        table = rank_table(num_rows)
        assert table[0] == 0.0
        assert table[-1] == num_rows
        assert (np.diff(table) > 0).all()


def test_a_log_with_an_end_ends():
    source = Clicks(num_samples=100, rows_per_slot=10)

    assert source.read(90, 200).sample_ids.tolist() == list(range(90, 100))


@pytest.mark.parametrize(
    "wish",
    [
        {"truth": "depe"},
        {"click_rate": 0.0},
        {"num_slots": 0},
        {"rows_per_slot": 1},
        {"mean_values": 99.0},
        {"num_multi_valued": 27},
        {"spread": -1.0},
        {"num_samples": 0},
    ],
)
def test_impossible_logs_are_refused_with_a_way_out(wish):
    with pytest.raises(DataError) as caught:
        Clicks(**wish)

    assert caught.value.hint


def real_histograms() -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of rows and of look-ups by how often a row is touched, as published."""
    lines = (Path(DATA) / "locality" / "dlrm_2021.txt").read_text().split("fbgemm_t856_bs65536_0.pt")[0].splitlines()
    shares = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("(")]
    return np.array(shares[:17]), np.array(shares[17:])


@pytest.mark.skipif(not DATA, reason="DOVETAIL_DATA is not set")
def test_rows_are_touched_as_often_as_in_real_traffic():
    source = Clicks(num_slots=1, num_multi_valued=0, num_dense=0)
    _, touches = np.unique(source.read(0, MEAN_TABLE_LOOKUPS).ids.numpy(), return_counts=True)
    edges = np.array([0, *(2.0**k for k in range(16)), np.inf]) + 0.5
    edges[0] = 0.5
    rows = np.histogram(touches, edges)[0] / touches.size
    lookups = np.histogram(touches, edges, weights=touches)[0] / touches.sum()

    real_rows, real_lookups = real_histograms()
    assert abs(rows - real_rows).max() < 0.012
    assert abs(lookups[:14] - real_lookups[:14]).max() < 0.012
    assert lookups[14:].sum() == pytest.approx(real_lookups[14:].sum(), abs=0.03)  # a handful of rows make up these
    assert touches.size == pytest.approx(128_435_723 / 856, rel=0.01)
