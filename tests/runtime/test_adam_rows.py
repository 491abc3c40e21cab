"""Rows under Adam are stepped as by PyTorch's `SparseAdam`, whoever keeps them; runs of the version before go on."""

import msgspec
import numpy as np
import pytest
import torch

from dovetail.data.loader import Loader
from dovetail.embedding.checkpoints.format import TableManifest
from dovetail.embedding.hashing import first_values
from dovetail.models.load import load_model
from dovetail.models.schedules import make_schedule
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import table_seed
from dovetail.runtime.launch.start import start
from dovetail.spec.run_sections import RunSaving, RunSchedule, RunTable
from tests.runtime.one_process import sparse_weights
from tests.runtime.runs import ADAM, STEADY, clicks, last_state, make_run, train, train_until

SAMPLES = 2000
SCHEDULED = msgspec.structs.replace(
    ADAM, schedule=RunSchedule(name="cosine", warmup_steps=3, total_steps=100, floor=0.1)
)
PLACES = {
    "servers": {"servers": 2, "workers": 2, "micro_batch": 7},
    "ring": {"servers": 1, "workers": 2, "dense": "ring"},
}


def by_pytorch(run):
    """Train the run's model by PyTorch's own optimizers alone, over a hundred steps."""
    source = clicks(num_samples=SAMPLES)
    graph = load_model("ctr-dnn", seed=3, schema=source.schema, **run.model.options)
    (weight,) = sparse_weights(graph)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(first_values(
            np.arange(len(weight)), width=weight.shape[1], seed=table_seed(3, 0), scale=1 / 3 / weight.shape[1] ** 0.5
        )))  # fmt: skip
    dense = [parameter for parameter in graph.parameters() if parameter is not weight]
    how = {"lr": run.optimizer.learning_rate, "eps": STEADY["epsilon"]}
    optimizers = torch.optim.Adam(dense, **how), torch.optim.SparseAdam([weight], **how)
    factor_of = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
    step = 0
    for batch in Loader(source, batch_size=20, seed=3, epoch=0, block_samples=64, prefetch=0):
        for optimizer in optimizers:
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = how["lr"] * factor_of(step)
        (graph(batch) / batch.num_samples).backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            for optimizer in optimizers:
                optimizer.step()
        step += 1
    assert step == 100
    return weight.detach().numpy()


@pytest.fixture(scope="module")
def expected():
    return by_pytorch(run_of(**PLACES["servers"]))


def run_of(**how):
    return make_run(samples=SAMPLES, batch=20, optimizer=SCHEDULED, **how)


def assert_rows(folder, expected):
    state = last_state(folder)
    assert state.manifest.step == 100
    np.testing.assert_allclose(state.rows[0][:, : expected.shape[1]], expected[state.keys[0]], rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("place", PLACES)
def test_a_hundred_steps_over_processes_end_where_sparse_adam_ends(tmp_path, place, expected):
    train(run_of(**PLACES[place]), tmp_path / "run")

    assert_rows(tmp_path / "run", expected)


@pytest.mark.parametrize("place", ["local", "device"])
def test_a_hundred_steps_in_one_process_end_where_sparse_adam_ends(tmp_path, expected, place):
    start(msgspec.structs.replace(run_of(), table=RunTable(place=place, device="cpu")), tmp_path / "run")

    assert_rows(tmp_path / "run", expected)


def test_a_run_that_goes_on_counts_its_steps_on(tmp_path, expected):
    run = run_of(**PLACES["servers"], checkpoint=RunSaving(every_steps=30))
    train_until(run, tmp_path / "run", 30)
    more = msgspec.structs.replace(run, servers=msgspec.structs.replace(run.servers, count=3))
    train(more, tmp_path / "run", resume=True)

    assert_rows(tmp_path / "run", expected)


def as_the_version_before_wrote(folder):
    """Write the tables of a run's checkpoints as `adam` of version 1, which `adam-per-row` was."""
    for checkpoint in checkpoints.all_in(folder):
        manifest = checkpoints.RunManifest.read(checkpoint)
        files = dict(manifest.files)
        for table in checkpoint.glob("table-*/server-*/*/manifest.json"):
            before = TableManifest.read(table.parent)
            settings = msgspec.structs.replace(before.settings, optimizer=before.settings.optimizer | {"name": "adam"})
            msgspec.structs.replace(before, settings=settings, version=1).write(table.parent)
            files[str(table.relative_to(checkpoint))] = checkpoints.checksum_of(table)
        made_by = msgspec.structs.replace(
            manifest.fingerprint, row_optimizer=manifest.fingerprint.row_optimizer | {"name": "adam"}
        )
        msgspec.structs.replace(manifest, files=files, fingerprint=made_by).write(checkpoint)


def test_a_run_of_the_version_before_goes_on_as_it_began_and_says_so_once(tmp_path):
    per_row = msgspec.structs.replace(SCHEDULED, rows="adam-per-row")
    run = msgspec.structs.replace(run_of(**PLACES["servers"], checkpoint=RunSaving(every_steps=30)), optimizer=per_row)
    train(run, tmp_path / "whole")
    train_until(run, tmp_path / "run", 30)
    as_the_version_before_wrote(tmp_path / "run")
    words = []

    start(msgspec.structs.replace(run, optimizer=SCHEDULED), tmp_path / "run", resumed=True, tell=words.append)

    assert len([word for word in words if "adam-per-row" in word]) == 1
    state, whole = last_state(tmp_path / "run"), last_state(tmp_path / "whole")
    assert state.manifest.step == 100
    np.testing.assert_allclose(state.rows[0], whole.rows[0], rtol=2e-5, atol=5e-6)
