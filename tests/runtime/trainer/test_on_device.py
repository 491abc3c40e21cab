"""A run whose rows lie on a device does what a run with servers does, and survives its end.

Without a GPU the device is the CPU: the same code but for streams and Triton.
"""

import signal
import subprocess
import sys
import time

import msgspec
import pytest
import torch

from dovetail.embedding import TableError
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import RunSummary
from dovetail.runtime.launch.start import start
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.one_process import in_one_process
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunSaving, RunTable, RunValidation
from testbed.direct_servers import DirectServers
from tests.runtime.runs import ADAGRAD, ADAM, assert_same_state, cut, last_state, make_run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLIPPED = msgspec.structs.replace(ADAM, clip_norm=0.1)
ROW_BYTES = 400
"""More than a row takes, with its optimizer's state and its part of the index."""


def run_on_device(*, rows=200, look_ahead=3, **how):
    """Return a run with room for so many rows on the device, of 240 that there are."""
    table = RunTable(place="device", device=DEVICE, device_bytes=rows * ROW_BYTES, look_ahead=look_ahead)
    return in_one_process(msgspec.structs.replace(make_run(**({"batch": 50, "samples": 1000} | how)), table=table))


def finish(run, folder, *, resume=False, last_step=None):
    """Run to the end, or to `last_step`; return the last report."""
    prepare(run, folder, resume=resume)
    with Trainer(folder) as alone:
        stop = (lambda: alone.step >= last_step) if last_step is not None else (lambda: False)
        return alone.wait(stop=stop)


def finish_with_servers(run, folder, *, resume=False):
    prepare(run, folder, resume=resume)
    alone = DirectServers(folder)
    alone.run()
    alone.close()


@pytest.mark.parametrize("optimizer", [CLIPPED, ADAGRAD], ids=lambda o: o.name)
def test_rows_on_a_device_end_where_rows_on_servers_end(tmp_path, optimizer):
    report = finish(run_on_device(optimizer=optimizer), tmp_path / "device")
    finish_with_servers(make_run(batch=50, samples=1000, optimizer=optimizer), tmp_path / "servers")

    assert report.step == 20
    assert_same_state(last_state(tmp_path / "device"), last_state(tmp_path / "servers"), rtol=2e-4, atol=2e-5)


def test_a_model_that_looks_a_table_up_twice_steps_each_row_once(tmp_path):
    model = RunModel(name="2emb", options={"num_rows": 240, "width": 4, "hidden": [16, 8]})
    finish(run_on_device(model=model, rows=600), tmp_path / "device")
    finish_with_servers(make_run(model=model, batch=50, samples=1000), tmp_path / "servers")

    assert_same_state(last_state(tmp_path / "device"), last_state(tmp_path / "servers"), rtol=2e-4, atol=2e-5)


def test_a_run_moves_from_a_device_to_servers_and_back(tmp_path):
    finish(run_on_device(), tmp_path / "run")
    finish_with_servers(make_run(batch=50, samples=1000, epochs=2, servers=2), tmp_path / "run", resume=True)
    finish(run_on_device(epochs=3), tmp_path / "run", resume=True)
    finish_with_servers(make_run(batch=50, samples=1000, epochs=3), tmp_path / "whole")

    assert last_state(tmp_path / "run").manifest.step == 60
    assert_same_state(last_state(tmp_path / "run"), last_state(tmp_path / "whole"), rtol=2e-3, atol=2e-4)


@pytest.mark.processes
def test_a_run_that_is_killed_goes_on_to_the_same_end(tmp_path):
    endless = run_on_device(epochs=100_000, checkpoint=RunSaving(every_steps=2, keep=2))  # no kill comes too late
    file, told = tmp_path / "run.json", tmp_path / "told.txt"
    file.write_bytes(msgspec.json.encode(endless))
    train = [sys.executable, "-c", "from dovetail.cli.main import main; main()", "train"]
    with told.open("wb") as stream:
        started = subprocess.Popen([*train, file, "--out", tmp_path / "run"], stdout=stream, stderr=stream)
    try:
        until_s = time.monotonic() + 90
        while not _has_step(tmp_path / "run", 10):
            assert started.poll() is None, f"it ended by itself: {told.read_text()}"
            assert time.monotonic() < until_s, f"no checkpoint came: {told.read_text()}"
            time.sleep(0.01)
    finally:
        started.kill()
        started.wait(timeout=100)

    assert started.returncode == -signal.SIGKILL
    last_step = last_state(tmp_path / "run").manifest.step + 30
    seldom = msgspec.structs.replace(endless, checkpoint=RunSaving())
    finish(seldom, tmp_path / "run", resume=True, last_step=last_step)
    finish(seldom, tmp_path / "whole", last_step=last_step)

    # A product of matrices need not have the same bits in two processes: MKL's loops go by where in memory they lie.
    rtol, atol = (1e-5, 1e-6) if DEVICE == "cpu" else (1e-3, 1e-3)
    assert last_state(tmp_path / "run").manifest.step == last_step
    assert_same_state(last_state(tmp_path / "run"), last_state(tmp_path / "whole"), rtol=rtol, atol=atol)


def _has_step(folder, step):
    return (
        any(int(each.name.split("-")[1]) >= step for each in checkpoints.all_in(folder)) if folder.exists() else False
    )


def test_a_run_stops_when_it_is_asked_to_and_keeps_what_it_has(tmp_path):
    finish(run_on_device(), tmp_path / "run", last_step=7)

    assert last_state(tmp_path / "run").manifest.position == 7 * 50


def test_less_memory_than_a_batch_needs_is_an_error_that_says_how_much_works(tmp_path):
    run = run_on_device(rows=20)
    with pytest.raises(TableError, match=r"distinct keys, and device_bytes = .* has room for") as caught:
        finish(run, tmp_path / "run")
    least = int(caught.value.hint.split("at least ")[1].split(",")[0])
    enough = msgspec.structs.replace(run, table=msgspec.structs.replace(run.table, device_bytes=2 * least))

    assert finish(enough, tmp_path / "enough").step == 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_the_error_says_so():
    run = msgspec.structs.replace(make_run(), table=RunTable(place="device"))
    with pytest.raises(TrainingError, match=r'table.device = "cuda": PyTorch finds no CUDA'):
        in_one_process(run)


def test_a_run_on_a_device_is_watched_tried_and_summed_up_like_any_other(tmp_path):
    reports, samples = [], 2000
    trials = RunValidation(every_steps=10, options={"seed": 5}, samples=200)
    run = msgspec.structs.replace(run_on_device(samples=samples, epochs=2), validation=trials)
    result = start(run, tmp_path / "run", on_report=reports.append)
    summary = RunSummary.read(tmp_path / "run")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    assert result.is_complete
    assert result.samples == summary.samples == reports[-1].samples == 2 * samples
    assert reports[-1].state == "done"
    assert result.best is not None
    assert {each.step % 10 for each in result.validation} == {0}
    assert result.loss == pytest.approx(reports[-1].loss)
    assert lines[-1]["samples"] == 2 * samples
    assert lines[-1]["workers"]["worker"]["share"] == 1.0
    assert result.workers["worker"]["samples"] == 2 * samples
    assert sum(len(keys) for keys in last_state(tmp_path / "run").keys) == sum(
        table.device_rows + table.host_rows + table.disk_rows for table in summary.tables
    )
    assert 0.0 < summary.tables[0].hit_ratio < 1.0


def test_stages_in_one_process_are_refused():
    with pytest.raises(TrainingError, match="cut into stages"):
        in_one_process(cut(run_on_device(), 1, 4, workers=(1, 1)))
