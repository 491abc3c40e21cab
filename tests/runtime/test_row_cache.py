"""Runs whose workers keep rows: in sync they end bit for bit where others end, in ssp every sample counts once."""

import pytest
import torch

from dovetail.errors import SpecError
from dovetail.runtime.folder import RunSummary
from dovetail.spec.run import RunWorker
from tests.runtime.chaos import Chaos
from tests.runtime.choosy import choosy
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once
from tests.runtime.runs import assert_same_state, last_state, make_run, train

KEEPS = [RunWorker(count=2, cache_bytes=1 << 20)]
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


def counted(folder):
    """Return how many rows workers looked up, and how many of them did not travel."""
    workers = RunSummary.read(folder).workers.values()
    return sum(each.looked_up_rows for each in workers), sum(each.kept_rows for each in workers)


def choosy_run(workers, **how):
    """Return a run whose gradients depend on rows, and whose sums are the same in any order."""
    how = {"model": choosy(), "servers": 2, "samples": 3000, "batch": 120, "micro_batch": 20, **how}
    return make_run(workers=workers, optimizer=PLAIN, reduction="sum", **how)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return where a run ends whose workers keep nothing."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(choosy_run(2), folder)
    assert counted(folder) == (0, 0)
    return last_state(folder)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_in_sync_a_run_ends_bit_for_bit_where_it_ends_without(tmp_path, plain, device):
    workers = [RunWorker(name="small", cache_bytes=2000, device=device), RunWorker(name="large", cache_bytes=1 << 20)]

    train(choosy_run(workers), tmp_path / "run")

    assert_same_state(last_state(tmp_path / "run"), plain)
    asked, kept = counted(tmp_path / "run")
    assert 0 < kept < asked


def test_servers_that_die_and_come_back_leave_no_stale_row_behind(tmp_path, plain):
    over = tmp_path / "over"
    chaos = Chaos(kills=2, seed=5, names=["server-0", "server-1"], pause_s=0.5, over=over)

    train(choosy_run(KEEPS, model=choosy(0.02, over), patience_s=5.0), tmp_path / "run", meanwhile=chaos)

    assert len(chaos.killed) == 2
    assert_same_state(last_state(tmp_path / "run"), plain)
    assert counted(tmp_path / "run")[1] > 0


def test_in_ssp_every_sample_counts_once_and_rows_are_used_again(tmp_path):
    run = make_run(
        model=COUNTING, optimizer=PLAIN, reduction="sum", mode="ssp", samples=3000, batch=60, workers=KEEPS, servers=2
    )

    train(run, tmp_path / "run")

    assert_each_sample_counts_once(tmp_path / "run")
    asked, kept = counted(tmp_path / "run")
    assert 0 < kept < asked


def test_async_refuses_to_keep_rows():
    with pytest.raises(SpecError, match="cache_bytes") as caught:
        make_run(mode="async", workers=KEEPS)

    assert "ssp" in caught.value.hint
