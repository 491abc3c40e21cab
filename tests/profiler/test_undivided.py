"""What cannot be divided into layers is profiled as one: whatever training takes, profiling takes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.models import ModelError
from dovetail.profiler.request import ProfileRequest


class Branching(nn.Module):
    """Takes another way where a size or a value says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(13, 8), nn.Linear(8, 1)

    def forward(self, dense):
        if dense.shape[0] == 0 or dense.sum() > 1e9:
            return dense[:, :1]
        return self.last(torch.relu(self.first(dense)))


class Tied(nn.Module):
    """Uses a layer's weights a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(13, 13), nn.Linear(13, 1)

    def forward(self, dense):
        return self.last(functional.linear(torch.relu(self.first(dense)), self.first.weight))


class OwnLoss(nn.Module):
    """Answers its loss, and scores besides."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(13, 1)

    def forward(self, dense, labels):
        scores = self.last(dense)
        return {"loss": functional.binary_cross_entropy_with_logits(scores.squeeze(1), labels), "score": scores}


class Failing(Branching):
    """Cannot be called with these samples."""

    def forward(self, dense):
        return self.first(dense[:, :5]) if dense.shape[0] else dense


@pytest.fixture
def own(monkeypatch):
    module = ModuleType("undivided_models")
    module.__dict__.update({each.__name__: each for each in (Branching, Tied, OwnLoss, Failing)})
    monkeypatch.setitem(sys.modules, "undivided_models", module)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "why"), [("Branching", "torch.fx"), ("Tied", "share the parameter"), ("OwnLoss", "several values")]
)
def test_a_model_that_cannot_be_cut_is_one_layer_with_its_loss_and_its_parameters(name, why):
    said: list[str] = []

    graph, batches = ProfileRequest(model=f"undivided_models:{name}", batch=64).build(said.append)

    assert [block.name for block in graph.blocks] == [name.lower()]
    assert len(said) == 1
    assert why in said[0]
    module = {"Branching": Branching, "Tied": Tied, "OwnLoss": OwnLoss}[name]()
    names = {each.rpartition("whole.module.")[2] for each, _ in graph.named_parameters()}
    assert names == {each for each, _ in module.named_parameters()}
    module.load_state_dict({each.rpartition("whole.module.")[2]: value for each, value in graph.state_dict().items()})
    answer = module(batches[0].dense, batches[0].labels) if name == "OwnLoss" else module(batches[0].dense)
    scores = answer["score"] if name == "OwnLoss" else answer
    loss = functional.binary_cross_entropy_with_logits(scores.squeeze(1), batches[0].labels, reduction="sum")
    torch.testing.assert_close(graph(batches[0]).detach(), loss.detach())


@pytest.mark.usefixtures("own")
def test_a_model_that_fails_with_the_samples_says_how():
    with pytest.raises(ModelError, match="forward of Failing failed with the first samples: RuntimeError: ") as caught:
        ProfileRequest(model="undivided_models:Failing", batch=64).build()

    assert caught.value.hint == "call it yourself with such a batch to see where it fails"


def test_a_branching_model_is_profiled_from_the_command_line(tmp_path: Path, monkeypatch, capsys):
    from dovetail.cli.main import main

    (tmp_path / "mine.py").write_text(
        "import torch\n\nclass Mine(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.last = torch.nn.Linear(13, 1)\n\n"
        "    def forward(self, dense):\n        return self.last(dense) if dense.shape[0] else dense\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ["profile", "mine:Mine", "--batch", "64", "--short-runs-s", "0", "--workers", "1", "--out", "problem.toml"]
    monkeypatch.setattr(sys, "argv", ["dovetail", *words])
    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    told = capsys.readouterr()
    assert "the model is one layer, which no plan cuts: Mine cannot be divided into layers" in told.err
    assert 'name = "mine"' in (tmp_path / "problem.toml").read_text()
