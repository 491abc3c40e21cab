"""Layers that share parameters, in a model that is cut into stages: one stage holds both, or the cut is refused."""

import pytest
import torch
from torch import nn

from dovetail.models import as_graph
from dovetail.profiler.request import ProfileRequest
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunModel
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAM, clicks, cut, make_run, train
from tests.runtime.test_equality import assert_equals

NUM_DENSE = 3


def tied():
    """Return a sequence whose third and fifth layers have one weight, and whose fifth and sixth are the same."""
    torch.manual_seed(8)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(nn.Linear(NUM_DENSE, 8), nn.ReLU(), first, nn.Tanh(), second, second, nn.Linear(8, 1))


@pytest.mark.parametrize("dense", ["ps", pytest.param("ring", marks=pytest.mark.slow)])
def test_tied_layers_of_one_stage_are_trained_as_in_one_process(tmp_path, dense):
    source, graph = clicks(num_samples=600), as_graph(tied())
    run = make_run(model=RunModel(name="own"), samples=600, optimizer=ADAM, dense=dense, micro_batch=37)
    run = cut(run, 1, len(graph) - 1, workers=(1, 1))

    train(run, tmp_path / "run", model=tied(), source=source)

    alone = OneProcess(run, graph, source)
    alone.train()
    assert_equals(tmp_path / "run", alone)


def test_a_cut_between_tied_layers_is_refused(tmp_path):
    run = make_run(model=RunModel(name="own"), samples=600, optimizer=ADAM)
    run = cut(run, 3, len(as_graph(tied())) - 1, workers=(1, 1))

    with pytest.raises(
        TrainingError, match=r"`linear2` and `linear4` share the parameter `weight`, .* stages 0 and 1"
    ) as e:
        prepare(run, tmp_path / "run", model=tied(), source=clicks(num_samples=600))

    assert "one stage holds both" in e.value.hint


MODEL = """
from torch import nn

def build():
    layer = nn.Linear(13, 13)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(13, 1))
"""


def test_no_plan_cuts_between_them(tmp_path):
    (tmp_path / "own.py").write_text(MODEL)
    said = []

    graph, _ = ProfileRequest(model=f"{tmp_path / 'own.py'}:build", batch=16).build(said.append)

    assert len(graph) == 1
    assert "share the parameter `weight`, and a plan might cut between them" in said[0]
