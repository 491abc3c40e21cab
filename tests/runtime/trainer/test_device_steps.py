"""Steps of a run whose rows lie on a device: captured or not they end with the same bits, and what cannot be is said.

Without a GPU a captured step is done again from its own memory, as a CUDA graph would: the same code but for the graph.
"""

import threading

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.data.errors import DataError
from dovetail.embedding.tiers.device.captured_step import cuda_graph
from dovetail.errors import SpecError
from dovetail.models.load import load_whole
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.hosts.fleet import Fleet
from dovetail.runtime.launch.start import start
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer import on_device
from dovetail.runtime.trainer.batches_ahead import THREAD_NAME
from dovetail.runtime.trainer.device_steps import FreeSteps, KnownSteps
from dovetail.runtime.trainer.on_device import bytes_by_table
from dovetail.runtime.trainer.one_process import in_one_process
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.runtime.worker.rows.prefetch import PooledBags, prefetchable_look_ups
from dovetail.spec.run import RunModel, RunWorker
from dovetail.spec.run_sections import RunOptimizer, RunSaving, RunSchedule, RunTable, RunValidation
from testbed.direct_servers import DirectServers
from tests.runtime.runs import ADAGRAD, DATA, assert_same_state, clicks, cut, last_state, make_run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACTLY = 0.0 if DEVICE == "cpu" else 1e-3
"""Matrix products of a GPU need not have the same bits twice."""
FLAT = DATA | {"num_multi_valued": 0}
"""Data of one id a slot, as steps can be captured with."""
SCHEDULE = RunSchedule(name="linear", warmup_steps=3, total_steps=20)


def run_on_device(*, graph=True, rows=200, look_ahead=3, precision="float32", **how):
    """Return a run with room for so many rows on the device, of 240 that there are."""
    table = RunTable(place="device", device=DEVICE, device_bytes=rows * 400, look_ahead=look_ahead, graph=graph)
    run = make_run(**({"batch": 50, "samples": 1020, "data": FLAT} | how))
    return in_one_process(msgspec.structs.replace(run, table=table, workers=[RunWorker(precision=precision)]))


def finish(run, folder, *, model=None, resume=False, last_step=None):
    """Run to the end, or to `last_step`; return what was told on the way, and how steps were computed."""
    told = []
    prepare(run, folder, model=model, resume=resume)
    with Trainer(folder, model=model) as alone:
        stop = (lambda: alone.step >= last_step) if last_step is not None else (lambda: False)
        alone.wait(lambda report: told.extend(report.events), stop=stop)
        return told, alone._steps


@pytest.fixture
def replays(monkeypatch):
    """Have steps captured; return a list that has an entry for each step that was replayed."""
    done = []

    def record(launch):
        again = cuda_graph(launch) if DEVICE == "cuda" else launch

        def replay():
            done.append(1)
            return again()

        return replay

    monkeypatch.setattr(on_device, "recorder_for", lambda device: record)
    return done


@pytest.mark.parametrize(
    ("model", "precision"), [("ctr-dnn", "float32"), ("ctr-dnn", "bfloat16"), ("2emb", "float32"), ("dlrm", "float32")]
)
def test_captured_steps_end_with_the_bits_of_others(tmp_path, replays, model, precision):
    options = {"num_rows": 240, "width": 4, "bottom": [8, 4], "top": [8]} if model == "dlrm" else {
        "num_rows": 240, "width": 4, "hidden": [16, 8]
    }  # fmt: skip
    how = {"model": RunModel(name=model, options=options), "rows": 600, "epochs": 2,
           "precision": precision,
           "optimizer": RunOptimizer(name="adam", learning_rate=0.01, clip_norm=0.1, schedule=SCHEDULE)}  # fmt: skip
    _, steps = finish(run_on_device(**how), tmp_path / "captured")
    num_replays = len(replays)
    finish(run_on_device(graph=False, **how), tmp_path / "plain")

    assert isinstance(steps, KnownSteps)
    assert "ids" not in steps._fields  # keys travel, and nothing that only look-ups read
    assert num_replays == len(replays) == 2 * 20 - 3  # of 2 x 21, the last of an epoch is smaller, and 3 came before
    assert_same_state(last_state(tmp_path / "captured"), last_state(tmp_path / "plain"), rtol=EXACTLY, atol=EXACTLY)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_are_pooled_and_their_gradients_shared_as_pytorch_does_it(mode):
    torch.manual_seed(0)
    values = torch.randn(9, 3, device=DEVICE).requires_grad_()
    begins = torch.tensor([0, 2, 2, 3, 7, 9], device=DEVICE)
    weights = torch.randn(5, 3, device=DEVICE)
    (PooledBags.apply(values, begins, mode) * weights).sum().backward()
    own, values.grad = values.grad, None
    bags = functional.embedding_bag(torch.arange(9, device=DEVICE), values, begins, mode=mode, include_last_offset=True)
    (bags * weights).sum().backward()

    torch.testing.assert_close(own, values.grad)


def test_with_several_ids_a_slot_steps_are_captured_by_rounded_sizes_and_end_as_with_servers(tmp_path, replays):
    run = run_on_device(data=DATA, epochs=3, optimizer=msgspec.structs.replace(ADAGRAD, schedule=SCHEDULE))
    finish(run, tmp_path / "device")
    with_servers = msgspec.structs.replace(run, table=RunTable())
    prepare(with_servers, tmp_path / "servers")
    alone = DirectServers(tmp_path / "servers")
    alone.run()
    alone.close()

    assert replays
    assert_same_state(last_state(tmp_path / "device"), last_state(tmp_path / "servers"), rtol=2e-4, atol=2e-5)


def test_a_model_that_cannot_be_captured_trains_all_the_same_and_it_is_said_once(tmp_path, monkeypatch):
    def fail(launch):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(on_device, "recorder_for", lambda device: fail)
    told, _ = finish(run_on_device(), tmp_path / "failed")
    finish(run_on_device(graph=False), tmp_path / "plain")

    words = [line for line in told if "operation by operation" in line]
    assert len(words) == 1
    assert "(operation not permitted when stream is capturing)" in words[0]
    assert_same_state(last_state(tmp_path / "failed"), last_state(tmp_path / "plain"), rtol=EXACTLY, atol=EXACTLY)


class OwnModel(nn.Module):
    """A model of a user's, with dropout of PyTorch's own."""

    def __init__(self):
        super().__init__()
        self.rows = nn.EmbeddingBag(240, 4, mode="sum", include_last_offset=True)
        self.answer = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, ids, offsets):
        return self.answer(self.rows(ids, offsets).view(-1, 16)).squeeze(1)


def own_run(**how):
    return run_on_device(model=RunModel(name="own", loss="logistic"), **how)


def test_a_model_of_the_users_own_is_not_captured_and_it_is_said_why(tmp_path, replays):
    torch.manual_seed(0)
    told, steps = finish(own_run(), tmp_path / "run", model=OwnModel())

    assert isinstance(steps, FreeSteps)
    assert not replays
    assert any("a model of your own" in line for line in told)


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(tmp_path):
    torch.manual_seed(0)
    model, often = OwnModel(), RunSaving(every_steps=7)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state()
    finish(own_run(checkpoint=often), tmp_path / "whole", model=model)
    unchanged = torch.equal(before, torch.get_rng_state())

    def again():
        fresh = OwnModel()
        fresh.load_state_dict(state)
        return fresh

    torch.manual_seed(99)
    finish(own_run(checkpoint=often), tmp_path / "cut", model=again(), last_step=7)
    torch.manual_seed(7)
    finish(own_run(checkpoint=often), tmp_path / "cut", model=again(), resume=True)

    assert unchanged
    assert_same_state(last_state(tmp_path / "cut"), last_state(tmp_path / "whole"), rtol=EXACTLY, atol=EXACTLY)


def test_look_ups_that_are_known_are_told_from_others():
    schema = clicks(num_samples=10).schema
    known = prefetchable_look_ups(load_whole("2emb", schema=schema, num_rows=240, width=4, hidden=[8]))
    candidates = prefetchable_look_ups(load_whole("nce"))

    assert [each.table for each in known] == [0, 1]
    assert isinstance(candidates, str)
    assert "data alone do not decide" in candidates


def test_a_layer_has_the_memory_that_it_is_given_and_others_share_the_rest(tmp_path):
    model = RunModel(name="2emb", options={"num_rows": 240, "width": 4, "hidden": [16, 8]})
    run = run_on_device(model=model, rows=1000)
    names = [spec.name for spec in prepare(run, tmp_path / "run").tables]
    first = names[0].removeprefix("layers.")
    table = msgspec.structs.replace(run.table, layer_bytes={first: 300_000})
    with Trainer(tmp_path / "run") as alone:
        even = {door.on_device.tier.device_bytes for door in alone._strategy.tables}

    assert even == {200_000}
    assert bytes_by_table(table, names) == [300_000, 100_000]
    assert bytes_by_table(run.table, []) == []
    with pytest.raises(TrainingError, match="names `nothing`, which is no layer with a table"):
        bytes_by_table(msgspec.structs.replace(table, layer_bytes={"nothing": 1}), names)
    with pytest.raises(TrainingError, match="leaves too little for 1 other tables"):
        bytes_by_table(msgspec.structs.replace(table, layer_bytes={first: 400_000}), names)
    with pytest.raises(SpecError, match="layer_bytes"):
        RunTable(device_bytes=10, layer_bytes={"a": 11})


def test_bfloat16_stays_close_to_float32_and_is_not_it(tmp_path):
    finish(run_on_device(precision="bfloat16"), tmp_path / "low")
    finish(run_on_device(), tmp_path / "full")
    low, full = last_state(tmp_path / "low"), last_state(tmp_path / "full")

    assert (low.dense != full.dense).any()
    assert abs(low.dense - full.dense).mean() < 0.1 * abs(full.dense).mean()


class Broken:
    """Data that cannot be read from some sample on."""

    def __init__(self, source):
        self._source, self.broken_from = source, source.num_samples
        self.schema, self.num_samples = source.schema, source.num_samples

    def read(self, first, last):
        if last > self.broken_from:
            raise DataError("the disk is gone", hint="bring it back")
        return self._source.read(first, last)


def test_data_that_cannot_be_read_end_the_run_and_its_reader(tmp_path):
    run = run_on_device(checkpoint=RunSaving(every_steps=1))
    run = msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, shuffle=False))
    source = Broken(clicks(**(FLAT | {"num_samples": 1020})))
    prepare(run, tmp_path / "run", source=source)
    source.broken_from = 700
    with Trainer(tmp_path / "run", source=source) as alone, pytest.raises(DataError, match="the disk is gone"):
        alone.wait()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]
    assert 1 <= last_state(tmp_path / "run").manifest.step <= 14


def test_a_run_that_does_not_get_better_stops_early(tmp_path):
    trials = RunValidation(every_steps=1, options={"seed": 5}, samples=100, patience=1, least_gain=100.0)
    run = msgspec.structs.replace(run_on_device(epochs=5000, checkpoint=RunSaving(keep=1)), validation=trials)
    result = start(run, tmp_path / "run")

    assert not result.is_complete
    assert len(result.validation) >= 2


def test_what_one_process_cannot_do_is_refused(tmp_path):
    run = run_on_device()
    with pytest.raises(TrainingError, match="cut into stages"):
        in_one_process(cut(run, 1, 4, workers=(1, 1)))
    with pytest.raises(TrainingError, match="--on starts workers on other hosts"):
        start(run, tmp_path / "run", fleet=Fleet([]))
    assert not (tmp_path / "run").exists()
