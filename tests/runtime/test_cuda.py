"""A worker on a GPU does what one on a CPU does."""

import pytest
import torch

from dovetail.spec.run import RunWorker
from tests.runtime.runs import assert_same_state, last_state, make_run, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("dense", ["ps", "ring"])
def test_a_gpu_and_a_cpu_end_where_two_cpus_end(tmp_path, dense):
    mixed = [RunWorker(name="gpu", device="cuda"), RunWorker(name="cpu")]

    train(make_run(samples=2000, workers=mixed, dense=dense), tmp_path / "mixed")
    train(make_run(samples=2000, dense=dense), tmp_path / "cpus")

    assert_same_state(last_state(tmp_path / "mixed"), last_state(tmp_path / "cpus"), rtol=1e-4, atol=1e-5)
