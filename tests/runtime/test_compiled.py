"""Models through `torch.compile` end where they end as they are; without a compiler they run as they are."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.any_model import NUM_DENSE, NUM_SLOTS, ROWS, Labelled, by_pytorch, clicked, make_run
from tests.runtime.runs import cut, log_of, train
from tests.runtime.test_equality import assert_equals


class Net(nn.Module):
    """Rows on servers, a norm over the whole batch, and something to compile on both sides of each."""

    takes = ("ids", "dense")

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True, padding_idx=3)
        self.hidden = nn.Linear(4 * NUM_SLOTS + NUM_DENSE, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 1)

    def forward(self, ids, dense):
        rows = self.table(ids.view(-1, NUM_SLOTS)).flatten(1)
        return self.out(functional.gelu(self.norm(self.hidden(torch.cat([torch.tanh(rows), dense], dim=1)))))


def logistic(scores, batch):
    return functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels, reduction="sum")


@pytest.mark.slow
def test_a_compiled_model_ends_where_pytorch_ends(tmp_path):
    torch.manual_seed(1)
    model, source = Net(), Labelled(clicked, num_samples=650)
    run = make_run(optimizer=RunOptimizer(name="sgd", learning_rate=0.1), workers=2, compile=True)

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source, timeout_s=250.0)

    assert_equals(tmp_path / "run", by_pytorch(run, model, source, logistic), rtol=2e-4, atol=2e-5)
    assert "runs as it is" not in log_of(tmp_path / "run", "worker-0")


def test_without_a_compiler_a_word_says_so(monkeypatch):
    import torch._inductor.config as settings

    monkeypatch.setattr(settings.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(settings, "force_disable_caches", True)
    torch._dynamo.reset()
    said = []

    assert not can_compile(torch.device("cpu"), said.append)
    assert "torch.compile does not work here, and the model runs as it is" in said[0]


def test_stages_are_not_compiled(tmp_path):
    model = nn.Sequential(nn.Linear(NUM_DENSE, 4), nn.Linear(4, 1))
    run = cut(make_run(compile=True), 0, 2, workers=(1, 1))

    with pytest.raises(TrainingError, match=r"training.compile is true, and the model is cut into stages"):
        prepare(run, tmp_path / "run", model=model, source=Labelled(clicked))
