"""A run whose rows lie with its workers ends where one process ends, however many workers there are."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from dovetail.models.load import as_graph
from dovetail.runtime.launch.start import start
from dovetail.spec.run import RunModel, RunServers
from dovetail.spec.run_sections import RunSchedule, RunTable
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAGRAD, ADAM, DATA, assert_same_state, clicks, last_state, make_run
from tests.runtime.test_equality import OwnModel, assert_equals
from tests.runtime.trainer.sharded.runs import train_sharded
from tests.runtime.trainer.test_on_host import finish, local_run
from tests.runtime.trainer.zoo import SAMPLES, SGD, ZOO, one_process, run_of

SLOW = pytest.mark.slow  # the others cover the same, and every run takes seconds
CLIPPED = replace(
    ADAGRAD, clip_norm=0.05, schedule=RunSchedule(name="cosine", warmup_steps=3, total_steps=10, floor=0.1)
)


@pytest.mark.parametrize(
    ("name", "workers", "optimizer"),
    [
        ("ctr-dnn", 3, ADAM),
        ("2emb", 2, ADAGRAD),
        ("dlrm", 2, CLIPPED),
        ("matchnet", 2, SGD),
        ("nce", 3, ADAGRAD),
        *(pytest.param(name, workers, SGD, marks=SLOW) for name in ZOO for workers in (1, 2, 3)),
    ],
    ids=lambda value: str(value) if isinstance(value, str | int) else value.name,
)
def test_a_sharded_run_ends_where_one_process_ends(tmp_path, name, workers, optimizer):
    run = run_of(name, workers=workers, optimizer=optimizer, epochs=2)

    train_sharded(run, tmp_path / "run")

    alone = one_process(run)
    assert alone.step == 10
    assert last_state(tmp_path / "run").manifest.num_servers == workers
    assert_equals(tmp_path / "run", alone)


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=SLOW), pytest.param(3, marks=SLOW)])
def test_a_module_of_ones_own_is_trained_as_in_one_process(tmp_path, workers):
    torch.manual_seed(7)
    own = OwnModel()
    source = clicks(num_samples=SAMPLES)
    run = make_run(model=RunModel(name="own"), samples=SAMPLES, batch=100, workers=workers)
    begun = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}

    train_sharded(run, tmp_path / "run", model=own, source=source)

    for name, parameter in own.named_parameters():
        parameter.data = begun[name]
    alone = OneProcess(run, as_graph(own), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


@pytest.mark.parametrize("name", ["ctr-dnn", pytest.param("nce", marks=SLOW)])
def test_one_worker_ends_with_the_bits_of_local_rows(tmp_path, name):
    data, options = ZOO[name]
    how = {"model": RunModel(name=name, options=options), "data": data, "samples": SAMPLES, "batch": 100}
    train_sharded(make_run(workers=1, **how), tmp_path / "sharded")
    finish(local_run(**how), tmp_path / "local")

    assert_same_state(last_state(tmp_path / "sharded"), last_state(tmp_path / "local"))


def test_sums_of_whole_numbers_have_the_same_bits_over_any_number_of_workers(tmp_path):
    run = make_run(model=COUNTING, optimizer=PLAIN, reduction="sum", samples=SAMPLES, batch=60, workers=3)
    train_sharded(run, tmp_path / "three")
    train_sharded(replace(run, workers=[replace(run.workers[0], count=2)]), tmp_path / "two")

    assert_each_sample_counts_once(tmp_path / "three")
    assert_same_state(last_state(tmp_path / "three"), last_state(tmp_path / "two"))


def test_rows_that_do_not_fit_into_memory_lie_on_the_disk_of_each_worker(tmp_path):
    data = DATA | {"rows_per_slot": 3000}
    model = RunModel(name="ctr-dnn", options={"num_rows": 12_000, "width": 16, "hidden": [8]})
    run = make_run(model=model, data=data, samples=3000, batch=100, workers=2)
    train_sharded(run, tmp_path / "roomy")
    train_sharded(replace(run, servers=RunServers(host_bytes=300_000)), tmp_path / "tight")

    summary = (tmp_path / "tight" / "summary.json").read_text()
    assert '"disk_rows":0' not in summary.replace(" ", "")
    assert_same_state(last_state(tmp_path / "tight"), last_state(tmp_path / "roomy"))


def test_a_run_goes_on_with_other_workers_with_servers_and_in_one_process(tmp_path):
    folder = tmp_path / "run"
    run = run_of("ctr-dnn", workers=2)
    train_sharded(run, folder)
    train_sharded(run_of("ctr-dnn", workers=3, epochs=2), folder, resume=True)
    start(run_of("ctr-dnn", workers=1, servers=2, epochs=3), folder, resumed=True)
    local = replace(run_of("ctr-dnn", epochs=4), table=RunTable(place="local", device="cpu"))
    start(local, folder, resumed=True)
    train_sharded(run_of("ctr-dnn", workers=2, epochs=5), folder, resume=True)

    alone = one_process(run_of("ctr-dnn", epochs=5))
    assert last_state(folder).manifest.step == 25
    assert_equals(folder, alone, rtol=2e-4, atol=2e-5)


def test_what_all_workers_did_is_told_by_the_first(tmp_path):
    reports = []
    run = run_of("ctr-dnn", workers=2, epochs=2)
    train_sharded(run, tmp_path / "run", meanwhile=lambda _, report: reports.append(report))

    last = reports[-1]
    assert (last.state, last.samples, last.step) == ("done", 2 * SAMPLES, 10)
    assert [worker.name for worker in last.workers] == ["worker-0", "worker-1"]
    assert sum(worker.samples for worker in last.workers) == 2 * SAMPLES
    assert np.isfinite(last.loss)
