"""A run in one process does what a run in many does, without sockets."""

import shutil

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from dovetail.models import ModelError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run_sections import RunOptimizer
from testbed.direct_servers import DirectServers
from tests.runtime.runs import ADAM, assert_same_state, clicks, last_state, make_run, train

CLIPPED = replace(ADAM, clip_norm=0.1)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The folder of a run in many processes: two servers, two workers, five steps."""
    folder = tmp_path_factory.mktemp("many") / "run"
    train(make_run(samples=1000, servers=2, optimizer=CLIPPED), folder)
    return folder


def run_alone(folder, *, resume=False, on_step=None, **how):
    """Run to the end in this process."""
    prepare(make_run(samples=1000, optimizer=CLIPPED, **how), folder, resume=resume)
    alone = DirectServers(folder)
    alone.run(on_step)
    alone.close()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_run_in_one_process_ends_where_a_run_in_many_ends(many, tmp_path, servers):
    losses = []

    run_alone(tmp_path / "one", servers=servers, on_step=lambda step, loss: losses.append((step, loss)))

    assert [step for step, _ in losses] == [1, 2, 3, 4, 5]
    assert_same_state(last_state(tmp_path / "one"), last_state(many), rtol=2e-5, atol=2e-6)


def test_a_run_in_one_process_goes_on_from_the_checkpoint_of_many(many, tmp_path):
    shutil.copytree(many, tmp_path / "run")

    run_alone(tmp_path / "run", servers=2, epochs=2, resume=True)
    run_alone(tmp_path / "whole", servers=2, epochs=2)

    assert last_state(tmp_path / "run").manifest.step == 10
    assert_same_state(last_state(tmp_path / "run"), last_state(tmp_path / "whole"), rtol=2e-5, atol=2e-6)


class Faulty(nn.Module):
    """Fails in its forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, dense):
        return self.layer(dense.view(-1, 7))


def test_an_exception_of_the_model_comes_out_as_it_is(tmp_path):
    source, model = clicks(num_samples=400), Faulty()

    with pytest.raises(ModelError, match="the model fails on the first samples: RuntimeError: shape"):
        prepare(make_run(samples=400), tmp_path / "run", model=model, source=source)
    with pytest.raises(RuntimeError, match="shape"):
        prepare(make_run(samples=400), tmp_path / "run", model=model, source=source, bare=True)


def test_a_ring_is_refused(tmp_path):
    prepare(make_run(samples=400, dense="ring"), tmp_path / "run")

    with pytest.raises(TrainingError, match="no ring"):
        DirectServers(tmp_path / "run")


def test_a_loss_that_is_no_number_is_an_error_with_the_step(tmp_path):
    prepare(make_run(samples=1000, optimizer=RunOptimizer(name="sgd", learning_rate=1e30)), tmp_path / "run")
    alone = DirectServers(tmp_path / "run")

    with pytest.raises(TrainingError, match="at step"), torch.autograd.set_detect_anomaly(False):
        alone.run()

    alone.close()
