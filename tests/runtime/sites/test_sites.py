"""Sites as real runs: processes, sockets and checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.runtime.sites.figures import read_facts
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.counting import COUNTING, PLAIN
from tests.runtime.runs import last_state, make_run, train
from tests.runtime.sites.two_sites import assert_counted_once_at_every_site, at_sites, train_sites

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
PLAIN_OUTER = {"outer_rate": 1.0, "outer_momentum": 0.0}


def test_every_sample_counts_once_in_the_union_of_two_sites(tmp_path: Path) -> None:
    run = make_run(model=COUNTING, optimizer=PLAIN, samples=2050, batch=100, reduction="sum", workers=1, servers=2)
    train_sites(at_sites(run, tmp_path, **PLAIN_OUTER), tmp_path)
    assert_counted_once_at_every_site(tmp_path, ("a", "b"))
    facts = read_facts(tmp_path / "b")
    assert {each.sites for each in facts} == {("a", "b")}
    assert sum(each.sent_bytes for each in facts) > 0


def test_one_step_a_round_without_rounding_equals_sync_at_one_site(tmp_path: Path) -> None:
    run = make_run(optimizer=RunOptimizer(name="momentum", rows="sgd", learning_rate=0.1), samples=1200, workers=1)
    train(make_run(optimizer=run.optimizer, samples=1200, workers=2), tmp_path / "one")
    train_sites(at_sites(run, tmp_path, every=1, ahead=0, **PLAIN_OUTER), tmp_path)
    one = last_state(tmp_path / "one")
    for site in ("a", "b"):
        state = last_state(tmp_path / site)
        np.testing.assert_allclose(state.dense, one.dense, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(state.keys[0], one.keys[0])
        np.testing.assert_allclose(state.rows[0], one.rows[0], rtol=1e-4, atol=1e-6)
