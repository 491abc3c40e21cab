"""In `sync` a run ends where one process ends that trains on the same batches, however the work was spread."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from dovetail.data.load import load_data
from dovetail.models.load import as_graph, load_model
from dovetail.spec.run import RunModel, RunWorker
from dovetail.spec.run_sections import RunOptimizer, RunSchedule
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAGRAD, ADAM, STEADY, clicks, last_state, make_run, train

SLOW = pytest.mark.slow  # the others cover the same, and every run takes seconds
UNEVEN = [RunWorker(name="a", share=0.55), RunWorker(name="b", share=0.1), RunWorker(name="c")]
TWO_UNEVEN = [RunWorker(name="a", share=0.7), RunWorker(name="b")]
MOMENTUM = RunOptimizer(name="momentum", learning_rate=0.1, rows="row-wise-adagrad", rows_settings=STEADY)
ADAMW = RunOptimizer(name="adamw", learning_rate=0.01, settings=STEADY, rows="ftrl")
CLIPPED = replace(
    ADAGRAD,
    clip_norm=0.05,
    schedule=RunSchedule(name="cosine", warmup_steps=3, total_steps=20, floor=0.1),
)


def assert_equals(folder, alone, *, rtol=2e-5, atol=2e-6):
    """Check everything that a run's last checkpoint holds."""
    state = last_state(folder)
    assert state.manifest.step == alone.step
    np.testing.assert_allclose(state.dense, alone.dense, rtol=rtol, atol=atol)
    assert state.dense_state.keys() == alone.dense_state.keys() or not len(alone.dense)
    for name, vector in alone.dense_state.items():
        np.testing.assert_allclose(state.dense_state.get(name, []), vector, rtol=rtol, atol=atol)
    assert len(state.keys) == len(alone.tables)
    for keys, rows, table in zip(state.keys, state.rows, alone.tables, strict=True):
        assert table.touched <= set(keys.tolist())
        np.testing.assert_allclose(rows, table.rows[keys], rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("dense", "servers", "workers", "optimizer", "training"),
    [
        pytest.param("ps", 1, 1, RunOptimizer(name="sgd", learning_rate=0.5), {"micro_batch": 37}, marks=SLOW),
        ("ps", 3, UNEVEN, ADAM, {"micro_batch": 50, "tail": 0.3}),
        ("ps", 2, 3, CLIPPED, {"tail": 0.1}),
        ("ps", 1, TWO_UNEVEN, ADAMW, {"balance": False}),
        pytest.param("ps", 1, 2, MOMENTUM, {"tail": 0.0}, marks=SLOW),
        ("ring", 1, TWO_UNEVEN, ADAM, {"tail": 0.3, "micro_batch": 50}),
        ("ring", 3, 3, CLIPPED, {"tail": 0.1}),
        pytest.param("ring", 1, 1, ADAGRAD, {}, marks=SLOW),
    ],
    ids=lambda value: str(value) if isinstance(value, str | int) else "",
)
def test_a_run_ends_where_one_process_ends(tmp_path, dense, servers, workers, optimizer, training):
    run = make_run(
        samples=1950, epochs=2, servers=servers, workers=workers, optimizer=optimizer, dense=dense, **training
    )

    train(run, tmp_path / "run")

    source = clicks(num_samples=1950)
    graph = load_model("ctr-dnn", seed=3, schema=source.schema, **run.model.options)
    alone = OneProcess(run, graph, source)
    alone.train()
    assert alone.step == 20
    assert_equals(tmp_path / "run", alone)


@pytest.mark.parametrize(("dense", "servers"), [("ps", 2), pytest.param("ring", 1, marks=SLOW)])
def test_rows_that_are_looked_up_on_the_way_are_trained_as_in_one_process(tmp_path, dense, servers):
    data = {"truth": "next-item", "rows_per_user_slot": 100, "num_items": 100}
    model = RunModel(name="nce", options={"width": 4, "num_rows": 200, "num_negatives": 3})
    run = make_run(
        model=model, data=data, samples=1000, servers=servers, workers=TWO_UNEVEN, dense=dense, micro_batch=64
    )

    train(run, tmp_path / "run")

    source = load_data("clicks", num_samples=1000, **data)
    alone = OneProcess(run, load_model("nce", seed=3, schema=source.schema, **model.options), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


class OwnModel(nn.Module):
    """A model as a user writes it: an embedding bag and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(240, 6, sparse=True, mode="sum", include_last_offset=True)
        self.tower = nn.Sequential(nn.Linear(4 * 6 + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, offsets, dense):
        pooled = self.bag(ids, offsets).view(-1, 4 * 6)
        return self.tower(torch.cat([pooled, dense], dim=1))


def test_a_module_of_ones_own_is_trained_as_in_one_process(tmp_path):
    torch.manual_seed(7)
    own = OwnModel()
    source = clicks(num_samples=1000)
    run = make_run(model=RunModel(name="own"), samples=1000, servers=2, workers=2)
    begun = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}

    train(run, tmp_path / "run", model=own, source=source)

    for name, parameter in own.named_parameters():
        parameter.data = begun[name]
    alone = OneProcess(run, as_graph(own), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)
