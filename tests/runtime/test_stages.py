"""What is cut into stages ends where one process ends that holds all of the model."""

from __future__ import annotations

import msgspec
import pytest
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import make_run, train
from tests.runtime.test_equality import assert_equals

from dovetail.data.load import load_data
from dovetail.models.load import load_model
from dovetail.runtime.model.items import items_for
from dovetail.spec.run import Run, RunModel, RunWorker
from dovetail.spec.run_optimizer import RunOptimizer
from dovetail.spec.run_stage import RunStage

pytestmark = pytest.mark.processes

ADAM = RunOptimizer(name="adam", learning_rate=0.01)


def cut(run: Run, *lasts: int, workers: tuple[int, ...]) -> Run:
    """Return a run whose stages end with these layers, with so many workers in each."""
    firsts = (0, *(last + 1 for last in lasts[:-1]))
    return msgspec.structs.replace(
        run,
        stages=[RunStage(first_layer=first, last_layer=last) for first, last in zip(firsts, lasts, strict=True)],
        workers=[
            RunWorker(name=f"stage-{number}", count=count, stage=number) for number, count in enumerate(workers)
        ],
    )


CLICKS = {"num_slots": 4, "num_multi_valued": 1, "num_dense": 3, "rows_per_slot": 60}
NEXT = {"truth": "next-item", "rows_per_user_slot": 100, "num_items": 100}
MATCHES = {
    "truth": "user-item", "num_user_slots": 3, "num_item_slots": 4, "num_dense": 2, "num_items": 40,
    "rows_per_user_slot": 20,
}  # fmt: skip
CTR_DNN = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 4, "hidden": [16, 8], "dropout": 0.2})
TWO = RunModel(
    name="2emb", options={"num_rows": 240, "width": 4, "hidden": [16, 8], "small_hidden": 8, "small_rows": 7}
)
DLRM = RunModel(name="dlrm", options={"num_rows": 240, "width": 4, "bottom": [8], "top": [16]})
NCE = RunModel(name="nce", options={"width": 4, "num_rows": 200, "num_negatives": 3})
MATCHNET = RunModel(
    name="matchnet",
    options={"num_rows": 240, "hidden": [16, 8], "width": 4, "num_user_slots": 3, "num_negatives": 5},
)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "data", "lasts", "workers", "servers"),
    [
        pytest.param(CTR_DNN, CLICKS, (1,), (1, 1), 1, id="ctr-dnn after the look-up"),
        pytest.param(CTR_DNN, CLICKS, (0, 3), (2, 2, 1), 2, id="ctr-dnn in three"),
        pytest.param(TWO, CLICKS, (3, 8), (1, 1, 2), 1, id="2emb with tables in two stages and an output that skips"),
        pytest.param(DLRM, CLICKS, (2,), (2, 1), 2, id="dlrm with the table in the second stage"),
        pytest.param(NCE, NEXT, (0, 2), (1, 1, 1), 1, id="nce with tables in two stages"),
        pytest.param(MATCHNET, MATCHES, (4, 8), (1, 2, 1), 2, id="matchnet with drawn items in the second stage"),
    ],
)
def test_a_cut_run_ends_where_one_process_ends(tmp_path, model, data, lasts, workers, servers):
    run = make_run(model=model, data=data, samples=600, servers=servers, optimizer=ADAM, micro_batch=37)
    source = load_data("clicks", num_samples=600, **data)
    options = {**items_for(run), **model.options}
    graph = load_model(model.name, seed=3, schema=source.schema, **options)
    run = cut(run, *lasts, len(graph) - 1, workers=workers)

    train(run, tmp_path / "run")

    alone = OneProcess(run, graph, source)
    alone.train()
    assert_equals(tmp_path / "run", alone)
