"""A worker on a GPU, or a stage on one, does what CPUs do."""

import msgspec
import pytest
import torch

from dovetail.models.load import load_model
from dovetail.spec.run import RunWorker
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.runs import assert_same_state, clicks, cut, last_state, make_run, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("dense", ["ps", "ring"])
def test_a_gpu_and_a_cpu_end_where_two_cpus_end(tmp_path, dense):
    mixed = [RunWorker(name="gpu", device="cuda"), RunWorker(name="cpu")]

    train(make_run(samples=2000, workers=mixed, dense=dense), tmp_path / "mixed")
    train(make_run(samples=2000, dense=dense), tmp_path / "cpus")

    assert_same_state(last_state(tmp_path / "mixed"), last_state(tmp_path / "cpus"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dense", "optimizer"), [("ps", "adam"), ("ring", "adam"), ("ring", "adagrad")])
def test_readers_on_cpus_and_layers_on_a_gpu_end_where_cpus_end(tmp_path, dense, optimizer):
    settings = {"samples": 2000, "dense": dense, "micro_batch": 60, "optimizer": RunOptimizer(name=optimizer)}
    run = make_run(**settings)
    num_layers = len(load_model(run.model.name, schema=clicks(num_samples=10).schema, **run.model.options))
    staged = cut(run, 1, num_layers - 1, workers=(2, 1))
    readers, layers = staged.workers
    on_gpu = msgspec.structs.replace(layers, device="cuda")

    train(msgspec.structs.replace(staged, workers=[readers, on_gpu]), tmp_path / "gpu")
    train(make_run(**settings), tmp_path / "cpus")

    assert_same_state(last_state(tmp_path / "gpu"), last_state(tmp_path / "cpus"), rtol=1e-3, atol=1e-5)
