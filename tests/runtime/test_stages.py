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

SMALL = {"num_slots": 4, "num_multi_valued": 1, "num_dense": 3, "rows_per_slot": 60}
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


def graph_of(run: Run, source):
    return load_model(run.model.name, seed=3, schema=source.schema, **items_for(run), **run.model.options)


@pytest.mark.parametrize(
    ("name", "options", "data", "workers", "servers"),
    [
        ("ctr-dnn", {"num_rows": 240, "width": 4, "hidden": [16, 8]}, SMALL, (1, 1), 1),
        ("ctr-dnn", {"num_rows": 240, "width": 4, "hidden": [16, 8], "dropout": 0.2}, SMALL, (2, 2, 1), 2),
    ],
)
def test_a_cut_run_ends_where_one_process_ends(tmp_path, name, options, data, workers, servers):
    source = load_data("clicks", num_samples=1000, **data)
    run = make_run(
        model=RunModel(name=name, options=options), data=data, samples=1000, servers=servers, optimizer=ADAM,
        micro_batch=37,
    )  # fmt: skip
    graph = graph_of(run, source)
    last = len(graph) - 1
    places = [last * (number + 1) // len(workers) for number in range(len(workers) - 1)]
    run = cut(run, *places, last, workers=workers)

    train(run, tmp_path / "run")

    alone = OneProcess(run, graph, source)
    alone.train()
    assert_equals(tmp_path / "run", alone)
