"""Modes that do not wait learn as much: the AUC on samples that no worker has seen."""

import pytest

from dovetail.data.loader import Loader
from dovetail.models.metrics import Auc
from dovetail.models.step import evaluate
from dovetail.runtime.finished.restore import restore_model
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunOptimizer, RunSaving
from tests.runtime.chaos import Chaos
from tests.runtime.runs import clicks, make_run, train

SAMPLES = 60_000
HELD_OUT = 40_000
MODEL = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 8, "hidden": [32, 16]})
RATES = RunOptimizer(name="adagrad", learning_rate=0.01, rows_learning_rate=0.05)
"""At higher rates gradients that are a few steps old cost accuracy, as they do everywhere."""


def auc_of(folder):
    """Return the AUC of a run's model on samples beyond those it saw."""
    model = restore_model(folder)
    loader = Loader(clicks(), batch_size=5000, start=SAMPLES, stop=SAMPLES + HELD_OUT, shuffle=False)
    return evaluate(model, loader, Auc())


def run_in(mode, *, epochs=2, **how):
    """Return a run on the same data in some mode."""
    return make_run(
        model=MODEL, samples=SAMPLES, batch=200, mode=mode, epochs=epochs,
        optimizer=RATES, workers=2, **how,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sync_auc(tmp_path_factory):
    """What is learnt in `sync`."""
    folder = tmp_path_factory.mktemp("sync") / "run"
    train(run_in("sync"), folder)
    return auc_of(folder)


# What could hurt is old gradients: `ssp` bounds their age, `async` does not, so where time is short `async` is enough.
@pytest.mark.parametrize("mode", [pytest.param("ssp", marks=pytest.mark.slow), "async"])
def test_ssp_and_async_learn_as_much_as_sync(tmp_path, sync_auc, mode):
    train(run_in(mode), tmp_path / "run")

    assert sync_auc > 0.7
    assert auc_of(tmp_path / "run") == pytest.approx(sync_auc, abs=0.005)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_twenty_kills_do_not_change_what_is_learnt(tmp_path, mode):
    train(run_in(mode, epochs=6), tmp_path / "calm", timeout_s=200)
    chaos = Chaos(kills=20, seed=2, pause_s=1.0)

    train(
        run_in(mode, epochs=6, checkpoint=RunSaving(every_s=1.0), patience_s=5.0),
        tmp_path / "chaos",
        meanwhile=chaos,
        timeout_s=600,
    )

    assert len(chaos.killed) == 20, chaos.killed
    assert auc_of(tmp_path / "chaos") == pytest.approx(auc_of(tmp_path / "calm"), abs=0.005)
