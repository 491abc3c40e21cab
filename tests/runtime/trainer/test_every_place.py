"""In `sync` a run ends in one place wherever its rows lie: as PyTorch alone, `local`, on `servers` and `sharded`."""

import numpy as np
import pytest
import torch

from dovetail.models.load import as_graph
from dovetail.spec.run import RunModel
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import assert_same_state, clicks, last_state, make_run
from tests.runtime.test_equality import OwnModel
from tests.runtime.trainer.sharded.runs import train_sharded
from tests.runtime.trainer.test_on_host import as_local, finish, finish_with_servers
from tests.runtime.trainer.zoo import SAMPLES, SGD, ZOO, one_process, run_of

CLOSE = 1e-6
"""Of the largest number of a vector or a table: what sums in another order may differ by. All step by SGD, which is
linear in a gradient; Adam and Adagrad divide by its size, and make any difference of a small one large."""
OWN = "a module of one's own"


def run_for(name, workers=1):
    """Return a run of a model of the zoo, or of the module of one's own."""
    if name != OWN:
        return run_of(name, workers=workers, optimizer=SGD)
    return make_run(model=RunModel(name="own"), samples=SAMPLES, batch=100, workers=workers, optimizer=SGD)


def given_for(name):
    """Return the model and the data of a run as a user gives them, where the run does not name them."""
    if name != OWN:
        return {}
    torch.manual_seed(7)
    return {"model": OwnModel(), "source": clicks(num_samples=SAMPLES)}


def by_pytorch(name):
    """Return the same training by PyTorch alone."""
    if name != OWN:
        return one_process(run_for(name))
    own = given_for(name)
    alone = OneProcess(run_for(name), as_graph(own["model"]), own["source"])
    alone.train()
    return alone


def assert_close(one, other):
    """Check numbers against others, relative to the largest of those."""
    assert one.shape == other.shape
    assert np.abs(one - other).max(initial=0.0) <= CLOSE * np.abs(other).max(initial=0.0)


def assert_ends_as(folder, alone):
    """Check a run's last checkpoint against PyTorch alone."""
    state = last_state(folder)
    assert state.manifest.step == alone.step
    assert_close(state.dense, alone.dense)
    assert len(state.keys) == len(alone.tables)
    for keys, rows, table in zip(state.keys, state.rows, alone.tables, strict=True):
        assert table.touched <= set(keys.tolist())
        assert_close(rows, table.rows[keys])


@pytest.mark.parametrize("name", [*ZOO, OWN])
def test_local_rows_and_those_of_a_server_end_as_pytorch_alone_and_with_the_same_bits(tmp_path, name):
    run, given = run_for(name), given_for(name)

    finish(as_local(run), tmp_path / "local", **given)
    finish_with_servers(run, tmp_path / "servers", **given_for(name))

    assert_ends_as(tmp_path / "local", by_pytorch(name))
    assert_same_state(last_state(tmp_path / "local"), last_state(tmp_path / "servers"))


@pytest.mark.parametrize(
    "name", [each if each in ("ctr-dnn", OWN) else pytest.param(each, marks=pytest.mark.slow) for each in [*ZOO, OWN]]
)
def test_sharded_rows_end_as_pytorch_alone(tmp_path, name):
    train_sharded(run_for(name, workers=2), tmp_path / "sharded", **given_for(name))

    assert_ends_as(tmp_path / "sharded", by_pytorch(name))
