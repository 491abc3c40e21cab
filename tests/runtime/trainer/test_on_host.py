"""A run in one process with its rows in memory ends where a run with servers ends, and goes on from it and back."""

import json
import subprocess
import sys

import msgspec
import pytest
import torch

from dovetail.models.load import as_graph
from dovetail.runtime.folder import RunSummary
from dovetail.runtime.launch.start import start
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.one_process import in_one_process
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.run import Run, RunModel, RunWorker, run_from, with_settings
from dovetail.spec.run_sections import RunOptimizer, RunTable
from testbed.direct_servers import DirectServers
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAGRAD, ADAM, DATA, assert_same_state, clicks, last_state, make_run
from tests.runtime.test_equality import OwnModel, assert_equals
from tests.runtime.trainer.zoo import SAMPLES, ZOO, one_process, run_of
from tests.runtime.trainer.zoo import SGD as SGD_ZOO

SGD = RunOptimizer(name="sgd", learning_rate=0.05)
CLIPPED = msgspec.structs.replace(ADAM, clip_norm=0.1)


MANY_ROWS = {"num_rows": 2400, "width": 32, "hidden": [16, 8]}


def local_run(**how):
    """Return a run of one process with its rows in memory."""
    return as_local(make_run(**({"batch": 50, "samples": 1000} | how)))


def as_local(run):
    """Return a run as one process does it."""
    table = RunTable(place="local", device="cpu")
    return in_one_process(msgspec.structs.replace(run, table=table, workers=(RunWorker(),)))


def finish(run, folder, *, resume=False, last_step=None, model=None, source=None, **how):
    """Run to the end, or to `last_step`; return the last report."""
    prepare(run, folder, model=model, source=source, resume=resume)
    with Trainer(folder, model=model, source=source, **how) as alone:
        stop = (lambda: alone.step >= last_step) if last_step is not None else (lambda: False)
        return alone.wait(stop=stop)


def finish_with_servers(run, folder, *, resume=False, model=None, source=None):
    prepare(run, folder, resume=resume, model=model, source=source)
    alone = DirectServers(folder, model=model, source=source)
    alone.run()
    alone.close()


@pytest.mark.parametrize("optimizer", [SGD, CLIPPED, ADAM], ids=["sgd", "clipped", "adam"])
def test_local_rows_end_with_the_bits_of_one_server(tmp_path, optimizer):
    report = finish(local_run(optimizer=optimizer), tmp_path / "local")
    finish_with_servers(make_run(batch=50, samples=1000, optimizer=optimizer), tmp_path / "servers")

    assert report.step == 20
    assert_same_state(last_state(tmp_path / "local"), last_state(tmp_path / "servers"), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", [SGD_ZOO, ADAGRAD, ADAM], ids=lambda each: each.name)
@pytest.mark.parametrize("name", ZOO)
def test_local_rows_end_where_pytorch_and_servers_end(tmp_path, name, optimizer):
    run = run_of(name, workers=1, optimizer=optimizer)
    finish(as_local(run), tmp_path / "local")
    finish_with_servers(run, tmp_path / "servers")

    assert_equals(tmp_path / "local", one_process(run))
    assert_same_state(last_state(tmp_path / "local"), last_state(tmp_path / "servers"), rtol=1e-5, atol=1e-6)


def test_a_module_of_ones_own_ends_where_pytorch_ends(tmp_path):
    torch.manual_seed(7)
    own, source = OwnModel(), clicks(num_samples=SAMPLES)
    run = make_run(model=RunModel(name="own"), samples=SAMPLES, batch=100, workers=1)
    begun = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}
    finish(as_local(run), tmp_path / "run", model=own, source=source)

    for name, parameter in own.named_parameters():
        parameter.data = begun[name]
    alone = OneProcess(run, as_graph(own), source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


def test_batches_that_are_added_up_end_as_one_of_their_size(tmp_path):
    finish(local_run(batch=10, accumulate=5, optimizer=SGD), tmp_path / "parts")
    finish(local_run(batch=50, optimizer=SGD), tmp_path / "whole")

    assert last_state(tmp_path / "parts").manifest.step == 20
    assert_same_state(last_state(tmp_path / "parts"), last_state(tmp_path / "whole"), rtol=1e-5, atol=1e-6)


def test_a_run_goes_from_one_process_to_servers_and_back(tmp_path):
    finish(local_run(optimizer=SGD), tmp_path / "run")
    servers = {"batch": 50, "samples": 1000, "optimizer": SGD}
    finish_with_servers(make_run(epochs=2, servers=2, **servers), tmp_path / "run", resume=True)
    finish(local_run(epochs=3, optimizer=SGD), tmp_path / "run", resume=True)
    finish(local_run(epochs=3, optimizer=SGD), tmp_path / "whole")

    assert last_state(tmp_path / "run").manifest.step == 60
    assert_same_state(last_state(tmp_path / "run"), last_state(tmp_path / "whole"), rtol=1e-5, atol=1e-6)


def test_rows_that_do_not_fit_into_memory_go_to_disk_and_change_no_bit(tmp_path):
    big = {"data": DATA | {"rows_per_slot": 600}, "model": RunModel(name="ctr-dnn", options=MANY_ROWS)}
    run = local_run(optimizer=SGD, epochs=2, **big)
    small = msgspec.structs.replace(run, servers=msgspec.structs.replace(run.servers, host_bytes=1 << 17))
    finish(small, tmp_path / "small")
    finish(run, tmp_path / "large")

    summary = RunSummary.read(tmp_path / "small")
    assert summary.tables[0].disk_rows > 0
    assert_same_state(last_state(tmp_path / "small"), last_state(tmp_path / "large"), rtol=0, atol=0)


@pytest.mark.parametrize("place", ["local", "device"])
def test_no_folder_of_rows_stays_where_none_were_cold(tmp_path, place):
    run = msgspec.structs.replace(make_run(samples=200, workers=1), table=RunTable(place=place, device="cpu"))

    start(run, tmp_path / "run")

    assert not (tmp_path / "run" / "rows").exists()


def test_nothing_happens_in_other_threads_where_that_is_asked(tmp_path):
    finish(local_run(optimizer=SGD), tmp_path / "here", reads_ahead=False)
    finish(local_run(optimizer=SGD), tmp_path / "ahead")

    assert_same_state(last_state(tmp_path / "here"), last_state(tmp_path / "ahead"), rtol=0, atol=0)


def test_who_names_no_workers_gets_one_process_and_who_names_some_gets_them():
    plain = Run(model=RunModel(name="ctr-dnn"))
    named = {
        key: with_settings(plain, {key: value}, place="test").table.place
        for key, value in {
            "worker": [{"count": 2}],
            "servers.count": 1,
            "training.mode": "async",
            "training.dense": "ring",
            "compression.bits": 8,
            "faults.restarts": 3,
            "training.batch": 10,
        }.items()
    }

    assert (plain.table.place, len(plain.each_worker())) == ("local", 1)
    assert named.pop("training.batch") == "local"
    assert set(named.values()) == {"servers"}
    assert len(with_settings(plain, {"servers.count": 2}, place="test").each_worker()) == 2
    assert run_from({"model": {"name": "ctr-dnn"}, "servers": {"count": 1}}, {}, place="test").table.place == "servers"


@pytest.mark.processes
def test_a_local_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    command = [sys.executable, "-m", "tests.runtime.trainer.local_kills", str(tmp_path), "5", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 2
    assert found["is_equal"]


def test_how_a_run_multiplies_is_its_own_affair(tmp_path):
    before = torch.get_float32_matmul_precision()
    run = local_run(workers=[RunWorker(precision="tf32")])
    prepare(msgspec.structs.replace(run, workers=(RunWorker(precision="tf32"),)), tmp_path / "run")
    with Trainer(tmp_path / "run"):
        assert torch.get_float32_matmul_precision() == "high"

    assert torch.get_float32_matmul_precision() == before == "highest"
