"""Who takes part, and with how much: by speed, by hand, by memory; workers that slow down, leave and come back."""

import msgspec
import pytest

from dovetail.spec.run import RunModel, RunWorker
from dovetail.spec.run_sections import RunSaving
from testbed import available
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import kill, make_run, train


def samples_of(report):
    """Return the samples that each worker has computed so far."""
    return {worker.name: worker.samples for worker in report.workers}


def summary_of(folder):
    """Return what a run came to."""
    return msgspec.json.decode((folder / "summary.json").read_bytes())


def counting_run(**how):
    """Return a run of the counting model."""
    return make_run(**({"model": COUNTING, "optimizer": PLAIN, "reduction": "sum"} | how))


@pytest.mark.alone
@pytest.mark.skipif(not available().cpu_quota, reason="no CPU quotas here")
def test_a_worker_that_slows_down_gets_less_within_a_few_steps(tmp_path):
    model = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 16, "hidden": [256, 256]})
    workers = [RunWorker(name="steady", cores=0.6), RunWorker(name="changing", cores=0.6)]
    run = make_run(model=model, samples=400_000, batch=4000, workers=workers, servers=1)
    seen = {}

    def meanwhile(local, report):
        done = samples_of(report)
        if "slowed" not in seen and report.step >= 12:
            seen["before"] = done["changing"] / sum(done.values())
            local.sandbox.quotas["changing"].change(0.15)
            seen["slowed"] = report.step
        elif "slowed" in seen and "begin" not in seen and report.step >= seen["slowed"] + 8:
            seen["begin"] = done
        elif "begin" in seen and "after" not in seen and report.step >= seen["slowed"] + 16:
            since = {name: done[name] - seen["begin"][name] for name in done}
            seen["after"] = since["changing"] / sum(since.values())
            local.ask_to_stop()

    train(run, tmp_path / "run", meanwhile=meanwhile)

    assert 0.35 < seen["before"] < 0.65
    assert 0.1 < seen["after"] < 0.32  # 0.15 of 0.75 cores is 0.2


def test_shares_pinned_by_hand_are_kept(tmp_path):
    workers = [RunWorker(name="a", share=0.7), RunWorker(name="b", share=0.2), RunWorker(name="c", share=0.1)]
    run = counting_run(samples=8000, batch=400, workers=workers)

    train(run, tmp_path / "run")

    shares = {name: worker["share"] for name, worker in summary_of(tmp_path / "run")["workers"].items()}
    assert shares == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1}, abs=0.02)
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
def test_a_worker_without_memory_gets_almost_nothing(tmp_path):
    # Less than the process takes by itself: once it is known what a sample takes, one sample a task is all it gets.
    workers = [RunWorker(name="small", memory_bytes=1 << 20), RunWorker(name="large")]
    run = counting_run(model=slow_counting(0.0005), samples=8000, batch=200, workers=workers, tail=0.0)
    seen = {}

    def meanwhile(local, report):
        if report.samples > 4000:
            seen.setdefault("half way", samples_of(report))

    train(run, tmp_path / "run", meanwhile=meanwhile)

    after = {name: each["samples"] for name, each in summary_of(tmp_path / "run")["workers"].items()}
    since = {name: after[name] - seen["half way"][name] for name in after}
    assert 0 < since["small"] < 0.05 * sum(since.values())
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.parametrize("mode", ["sync", pytest.param("ssp", marks=pytest.mark.slow)])
def test_a_worker_that_leaves_for_good_is_not_waited_for(tmp_path, mode):
    gone = tmp_path / "gone"
    run = counting_run(
        model=slow_counting(0.003, until=gone), samples=9000, batch=100, workers=3, mode=mode, restart_workers=False,
        staleness=2,
    )  # fmt: skip
    seen = {}

    def meanwhile(local, report):
        if report.samples > 1000 and "left" not in seen:
            kill(local, "worker-1")
            seen["left"] = report.samples
        seen["states"] = {worker.name: worker.state for worker in report.workers}
        if "left" in seen and seen["states"].get("worker-1") == "away":
            gone.touch()

    local = train(run, tmp_path / "run", meanwhile=meanwhile)

    assert "worker-1" not in local.children
    assert seen["states"] == {"worker-0": "working", "worker-1": "away", "worker-2": "working"}
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.parametrize("dense", [pytest.param("ps", marks=pytest.mark.slow), "ring"])
def test_a_worker_that_comes_back_works_again(tmp_path, dense):
    back = tmp_path / "back"
    run = counting_run(
        model=slow_counting(0.003, until=back), samples=24_000, batch=100, workers=2, dense=dense,
        checkpoint=RunSaving(every_s=0.5),
    )  # fmt: skip
    seen = {}

    def meanwhile(local, report):
        done = samples_of(report)
        if report.samples > 1500 and "left" not in seen:
            kill(local, "worker-1")
            seen["left"] = done["worker-1"]
        seen["last"] = done.get("worker-1", 0)
        if "left" in seen and seen["last"] > seen["left"] + 1000:
            back.touch()

    local = train(run, tmp_path / "run", meanwhile=meanwhile)

    assert local.children["worker-1"].starts == 2
    assert seen["last"] > seen["left"] + 1000
    assert_each_sample_counts_once(tmp_path / "run")
