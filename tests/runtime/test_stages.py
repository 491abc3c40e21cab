"""What is cut into stages ends where one process ends that holds all of the model."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.data.load import load_data
from dovetail.models.load import as_graph, load_model
from dovetail.runtime.finished.restore import restore_into
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Report
from dovetail.runtime.model.build import items_for
from dovetail.spec.run import Run, RunModel
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAM, clicks, cut, kill, make_run, train
from tests.runtime.test_equality import OwnModel, assert_equals

pytestmark = pytest.mark.processes


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


CUTS = {
    "ctr-dnn after the look-up": (CTR_DNN, CLICKS, (1,), (1, 1), 1),
    "ctr-dnn in three": (CTR_DNN, CLICKS, (0, 3), (2, 2, 1), 2),
    "2emb with tables in two stages and an output that skips": (TWO, CLICKS, (3, 8), (1, 1, 2), 1),
    "dlrm with the table in the second stage": (DLRM, CLICKS, (2,), (2, 1), 2),
    "nce with tables in two stages": (NCE, NEXT, (0, 2), (1, 1, 1), 1),
    "nce with a table that hears of the batch by others": (NCE, NEXT, (0, 1, 2), (1, 1, 1, 1), 1),
    "matchnet with drawn items in the second stage": (MATCHNET, MATCHES, (4, 8), (1, 2, 1), 2),
}


@pytest.mark.parametrize(
    ("model", "data", "lasts", "workers", "servers", "dense"),
    [  # every cut, by parameter servers and by a ring in turn; the other half is slow
        pytest.param(*cut, dense, id=f"{name}-{dense}", marks=[SLOW] if (number + is_ring) % 2 else [])
        for number, (name, cut) in enumerate(CUTS.items())
        for is_ring, dense in enumerate(("ps", "ring"))
    ],
)
def test_a_cut_run_ends_where_one_process_ends(tmp_path, model, data, lasts, workers, servers, dense):
    run = make_run(model=model, data=data, samples=600, servers=servers, optimizer=ADAM, micro_batch=37, dense=dense)
    source = load_data("clicks", num_samples=600, **data)
    options = {**items_for(run), **model.options}
    graph = load_model(model.name, seed=3, schema=source.schema, **options)
    run = cut(run, *lasts, len(graph) - 1, workers=workers)

    train(run, tmp_path / "run")

    alone = OneProcess(run, graph, source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


def test_a_module_of_ones_own_is_cut_trained_and_filled(tmp_path):
    torch.manual_seed(7)
    own = OwnModel()
    begun = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}
    source = clicks(num_samples=600)
    graph = as_graph(own)
    run = cut(make_run(model=RunModel(name="own"), samples=600, optimizer=ADAM), 0, len(graph) - 1, workers=(1, 1))

    train(run, tmp_path / "run", model=own, source=source)

    filled = restore_into(OwnModel(), tmp_path / "run")
    for name, parameter in own.named_parameters():
        parameter.data = begun[name]
    alone = OneProcess(run, graph, source)
    alone.train()
    assert_equals(tmp_path / "run", alone)
    for name, parameter in own.tower.named_parameters():
        torch.testing.assert_close(dict(filled.tower.named_parameters())[name], parameter, rtol=2e-5, atol=2e-6)


def counting_run(
    *, pause_s: float, samples: int, workers: tuple[int, ...] = (2, 2, 2), servers: int = 1, until: Path | None = None,
    **training: Any,
) -> Run:  # fmt: skip
    run = make_run(
        model=slow_counting(pause_s, until=until, has_middle=True), samples=samples, servers=servers,
        optimizer=PLAIN, batch=60, reduction="sum", micro_batch=10, patience_s=4.0,
        checkpoint=RunSaving(every_steps=5), **training,
    )  # fmt: skip
    return cut(run, 0, 1, 2, workers=workers)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({"dense": "ps"}, marks=SLOW),
        {"dense": "ring"},
        {"mode": "async"},
        pytest.param({"mode": "ssp"}, marks=SLOW),
    ],
)
def test_one_worker_of_each_stage_dies_and_every_sample_counts_once(tmp_path, training):
    left, over = ["stage-0-0", "stage-1-1", "stage-2-0"], tmp_path / "over"

    def strike(local: LocalRun, report: Report) -> None:
        if left and report.step >= 4 * (4 - len(left)):
            kill(local, left.pop(0))
        if not left:
            over.touch()

    run = counting_run(pause_s=0.01, samples=2400, until=over, **training)
    train(run, tmp_path / "run", meanwhile=strike)

    assert not left
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.parametrize("dense", ["ps", pytest.param("ring", marks=SLOW)])
def test_the_only_worker_of_a_stage_comes_back(tmp_path, dense):
    over = tmp_path / "over"

    def strike(local: LocalRun, report: Report) -> None:
        if report.step >= 3 and not over.exists():
            kill(local, "stage-1")
            over.touch()

    run = counting_run(pause_s=0.005, samples=2400, workers=(1, 1, 1), until=over, dense=dense)
    train(run, tmp_path / "run", meanwhile=strike)

    assert over.exists()
    assert_each_sample_counts_once(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "dense"), [(1, "ps"), (2, "ring")])
def test_thirty_kills_over_all_roles_lose_nothing(tmp_path, seed, dense):
    draw, next_s, kills = random.Random(seed), 0.0, 0

    def strike(local: LocalRun, report: Report) -> None:
        nonlocal next_s, kills
        if kills < 30 and report.step > 2 and time.monotonic() > next_s:
            kill(local, draw.choice(sorted(local.children)))
            kills += 1
            next_s = time.monotonic() + draw.uniform(0.2, 3.0)

    run = counting_run(pause_s=0.02, samples=6000, servers=2, dense=dense)
    train(run, tmp_path / "run", meanwhile=strike, timeout_s=550.0)

    assert kills == 30
    assert_each_sample_counts_once(tmp_path / "run")
