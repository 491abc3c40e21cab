"""Whoever dies, and whenever: every sample is applied exactly once."""

import pytest

from dovetail.spec.run_sections import RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_nothing_left, make_run, train


def chaotic_run(folder, chaos, *, seconds, servers=2, workers=2, timeout_s, samples=6000, until=None, **training):
    """Train the counting model for about `seconds`, or `until` a file is there, while things die; return the run."""
    run = make_run(
        model=slow_counting(seconds * workers / samples, until=until),
        optimizer=PLAIN,
        reduction="sum",
        samples=samples,
        servers=servers,
        workers=workers,
        patience_s=5.0,
        checkpoint=RunSaving(every_s=0.7),
        batch=60,
        **training,
    )
    local = train(run, folder, meanwhile=chaos, timeout_s=timeout_s)
    assert_nothing_left(local)
    return local


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_after_four_kills_every_sample_counts_once(tmp_path, mode):
    over = tmp_path / "over"
    chaos = Chaos(kills=4, seed=1, pause_s=1.0, over=over)

    chaotic_run(tmp_path / "run", chaos, seconds=60, samples=12_000, until=over, mode=mode, timeout_s=200)

    assert len(chaos.killed) == 4, chaos.killed
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_after_twenty_kills_every_sample_counts_once(tmp_path, mode, seed):
    chaos = Chaos(kills=20, seed=seed)

    chaotic_run(tmp_path / "run", chaos, seconds=35, mode=mode, timeout_s=500)

    assert len(chaos.killed) == 20, chaos.killed
    assert {name.partition("-")[0] for name in chaos.killed} == {"coordinator", "server", "worker"}
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_coordinator_that_dies_ten_times_between_decisions_loses_and_repeats_nothing(tmp_path, mode):
    # Small steps: most of its life the coordinator is writing a decision down or telling the servers of one.
    chaos = Chaos(kills=10, seed=5, names=["coordinator"], pause_s=1.0)

    chaotic_run(tmp_path / "run", chaos, seconds=20, workers=1, mode=mode, timeout_s=250, micro_batch=10)

    assert len(chaos.killed) == 10
    assert_each_sample_counts_once(tmp_path / "run")
