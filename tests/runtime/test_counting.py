"""By a model that counts: every sample is applied once, however the work was spread."""

import pytest

from dovetail.spec.run import RunWorker
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once
from tests.runtime.runs import assert_nothing_left, make_run, train

UNEVEN = [RunWorker(name="a", share=0.1), RunWorker(name="b", share=0.6), RunWorker(name="c")]


@pytest.mark.parametrize(
    ("mode", "workers", "servers", "micro_batch"),
    [
        # test_equality shows more of `sync` than counts, with uneven workers, small parts and two epochs, too.
        pytest.param("sync", UNEVEN, 2, 37, marks=pytest.mark.slow, id="sync"),
        pytest.param("ssp", 2, 1, 2048, id="ssp"),
        pytest.param("async", 3, 2, 64, id="async"),
    ],
)
def test_every_sample_counts_once(tmp_path, mode, workers, servers, micro_batch):
    run = make_run(
        model=COUNTING, optimizer=PLAIN, reduction="sum", mode=mode, workers=workers, servers=servers,
        micro_batch=micro_batch, samples=3001, epochs=2,
    )  # fmt: skip

    local = train(run, tmp_path / "run")

    assert_each_sample_counts_once(tmp_path / "run")
    assert_nothing_left(local)
