"""A server that is killed comes back as it was: no step is repeated, and every sample counts once."""

from pathlib import Path

import pytest

from dovetail.runtime.server.redo.records import BEGIN
from dovetail.runtime.server.redo.ring import PAGE
from dovetail.spec.run_sections import RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.counting import assert_each_sample_counts_once
from tests.runtime.many_kills import ADAM, counting_run, train_under_kills, went_back
from tests.runtime.runs import assert_same_state, kill, last_state, train

LONG = {"seconds": 40, "samples": 9000}
"""How long a run is that hurries once it was struck."""


class Once:
    """Does something to a run, once, when it has done so many samples; then makes the file `over`."""

    def __init__(self, samples, act, over):
        self._samples, self._act, self._over, self.is_done = samples, act, over, False

    def __call__(self, local, report):
        if not self.is_done and report.samples >= self._samples:
            self.is_done = True
            self._act(local)
            self._over.touch()


# In sync the next test shows the same, and bit by bit.
@pytest.mark.parametrize(
    "mode", [pytest.param("sync", marks=pytest.mark.slow), pytest.param("ssp", marks=pytest.mark.slow), "async"]
)
def test_servers_that_die_cost_no_step(tmp_path, mode):
    over = tmp_path / "over"
    chaos = Chaos(kills=3, seed=2, names=["server-0", "server-1"], pause_s=1.0, over=over)
    run = counting_run(**LONG, until=over, mode=mode)

    local = train(run, tmp_path / "run", meanwhile=chaos)

    assert len(chaos.killed) == 3
    assert went_back(local) == []
    assert_each_sample_counts_once(tmp_path / "run")


def test_tables_are_bit_equal_to_those_of_a_run_without_kills(tmp_path):
    over = tmp_path / "over"
    chaos = Chaos(kills=2, seed=4, names=["server-0", "server-1"], pause_s=1.0, over=over)
    run = counting_run(**LONG, until=over, optimizer=ADAM, checkpoint=RunSaving(every_s=0.9))

    local = train(run, tmp_path / "killed", meanwhile=chaos)
    train(run, tmp_path / "whole")

    assert len(chaos.killed) == 2
    assert went_back(local) == []
    assert_same_state(last_state(tmp_path / "killed"), last_state(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["sync", "ssp", "async"])
def test_after_two_hundred_kills_no_step_is_repeated(tmp_path, mode, seed):
    # Seventeen in each of twelve runs, a quarter of them two at once.
    assert len(train_under_kills(tmp_path, mode, seed).names) == 17


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_after_fifty_kills_in_a_ring_every_sample_counts_once(tmp_path, seed):
    assert len(train_under_kills(tmp_path, "ring", seed).names) == 17


def ring_of(local):
    """Return where the end of a server's log is."""
    return Path(local.blueprint.lanes) / "server-0.ring"


def harmed(local):
    """Flip a bit in the log of a server that goes on, in its first record, and end it."""
    ring = ring_of(local)
    with ring.open("r+b") as file:
        file.seek(PAGE + BEGIN + 100)
        (byte,) = file.read(1)
        file.seek(PAGE + BEGIN + 100)
        file.write(bytes([byte ^ 4]))
    kill(local, "server-0")


def test_a_damaged_log_is_refused_and_the_run_goes_back_with_a_word(tmp_path):
    over = tmp_path / "over"
    once = Once(1000, harmed, over)

    local = train(counting_run(**LONG, until=over), tmp_path / "run", meanwhile=once)

    assert once.is_done
    (refusal,) = [event for event in local.events if "is not used" in event]
    assert refusal.startswith("server-0: its redo log is not used: e000001-v0000000000.redo is damaged after byte 1024")
    assert went_back(local) == ["server-0 came back without its state; the run goes back to the checkpoint of step 0"]
    assert_each_sample_counts_once(tmp_path / "run")


def lost(local):
    """End a server whose disk is gone."""
    for log in [ring_of(local), *(local.folder / "redo" / "server-0").glob("*.redo")]:
        log.unlink()
    kill(local, "server-0")


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_with_a_replica_a_lost_disk_costs_no_step(tmp_path, mode):
    over = tmp_path / "over"
    once = Once(1000, lost, over)
    run = counting_run(**LONG, until=over, mode=mode, faults={"replicas": 1})

    local = train(run, tmp_path / "run", meanwhile=once)

    assert once.is_done
    assert [event for event in local.events if "the copy of its redo log is used" in event]
    assert went_back(local) == []
    assert_each_sample_counts_once(tmp_path / "run")
    assert not (tmp_path / "run" / "redo").exists()


def test_without_a_log_a_servers_death_takes_the_run_back(tmp_path):
    over = tmp_path / "over"
    once = Once(1000, lambda local: kill(local, "server-0"), over)

    local = train(counting_run(**LONG, until=over, faults={"redo_log": False}), tmp_path / "run", meanwhile=once)

    assert len(went_back(local)) == 1
    assert_each_sample_counts_once(tmp_path / "run")
