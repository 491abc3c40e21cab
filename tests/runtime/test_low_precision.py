"""Parameters in bfloat16 and float16: masters in float32 end where those of PyTorch end."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.data.loader import Loader
from dovetail.runtime import restore_into, train
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.worker.compute.low_precision import FIRST_SCALE, LossScale
from dovetail.spec.run import RunModel, with_settings
from tests.runtime.any_model import NUM_DENSE, NUM_SLOTS, ROWS, Labelled, clicked, make_run, train_here
from tests.runtime.runs import cut, last_state


class Net(nn.Module):
    takes = ("dense",)

    def __init__(self, loudness=1.0):
        super().__init__()
        self.hidden = nn.Linear(NUM_DENSE, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 1)
        self.loudness = loudness

    def forward(self, dense):
        return self.out(torch.relu(self.norm(self.hidden(dense)))) * self.loudness


def made(kind, **options):
    torch.manual_seed(3)
    return Net(**options).to(kind)


def with_masters(run, model, source):
    """Train as people do in PyTorch: the model in low precision, its masters and the optimizer in float32."""
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=run.optimizer.learning_rate, eps=run.optimizer.settings["epsilon"])
    loader = Loader(
        source, batch_size=run.training.batch, seed=run.training.seed, epoch=0, block_samples=64, prefetch=0
    )
    for batch in loader:
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master)
            parameter.grad = None
        scores = model(batch.dense.to(model.out.weight.dtype)).float().reshape(-1)
        functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum").backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float() / batch.num_samples
        optimizer.step()
    return torch.cat([master.detach().reshape(-1) for master in masters]).numpy()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_masters_end_where_those_of_pytorch_end(tmp_path, kind):
    model, source, run = made(kind), Labelled(clicked), make_run()

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    state = last_state(tmp_path / "run")
    # Scaled, a float16 gradient is rounded elsewhere than it would be unscaled: where it is smallest, it is better.
    rtol = 1e-5 if kind == torch.bfloat16 else 5e-3
    np.testing.assert_allclose(state.dense, with_masters(run, model, source), rtol=rtol, atol=rtol / 5)
    filled = restore_into(made(kind), tmp_path / "run")
    assert filled.out.weight.dtype == kind
    assert torch.equal(filled.out.bias, torch.from_numpy(state.dense[-1:]).to(kind))


@pytest.mark.parametrize("dense", ["ps", pytest.param("ring", marks=pytest.mark.slow)])
def test_spread_over_workers_they_end_near_there(tmp_path, dense):
    model, source, run = made(torch.bfloat16), Labelled(clicked), make_run(dense=dense, micro_batch=33)

    train(copy.deepcopy(model), source, run=run, folder=tmp_path / "run", workers=2)

    # Each part of a batch has its gradients rounded to 8 bits.
    expected = with_masters(run, model, source)
    np.testing.assert_allclose(last_state(tmp_path / "run").dense, expected, rtol=0.02, atol=0.01)


def test_gradients_that_overflow_float16_are_computed_again_with_a_smaller_loss(tmp_path):
    model, source, run = made(torch.float16, loudness=2000.0), Labelled(clicked), make_run()

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    dense = last_state(tmp_path / "run").dense
    assert np.isfinite(dense).all()
    assert np.abs(dense - torch.cat([p.detach().float().reshape(-1) for p in model.parameters()]).numpy()).max() > 0.01


def test_the_scale_of_a_loss_does_not_show_in_gradients():
    weight = torch.ones(4, dtype=torch.float16, requires_grad=True)
    vector, scale = torch.full((4,), 5.0), LossScale()

    def pass_on(of):
        vector.add_(of.grad)
        of.grad = None

    weight.register_post_accumulate_grad_hook(pass_on)

    scale.backward((weight.float() * torch.tensor([1.0, 2.0, 1e-6, 900.0])).sum(), 1, vector, list)

    # 900 times the first scale is beyond float16, which ends at 65504; 1e-6 alone would be rounded to zero or nearly.
    assert scale.value == FIRST_SCALE / 1024
    assert vector.tolist() == pytest.approx([6.0, 7.0, 5.0 + 1e-6, 905.0], rel=1e-4)
    with pytest.raises(TrainingError, match="however small the loss is made"):
        scale.backward((weight.float() * torch.tensor(float("inf"))).sum(), 1, vector, list)


class Rows(nn.Module):
    takes = ("ids",)

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True)
        self.out = nn.Linear(4 * NUM_SLOTS, 1)

    def forward(self, ids):
        rows = self.table(ids.view(-1, NUM_SLOTS)).flatten(1)
        assert rows.dtype == torch.bfloat16
        return self.out(rows)


def test_rows_on_servers_are_float32_and_looked_up_as_the_layer_has_them(tmp_path):
    source = Labelled(clicked)

    train_here(make_run(), tmp_path / "run", Rows().bfloat16(), source)

    rows = last_state(tmp_path / "run").rows[0][:, :4]
    assert (torch.from_numpy(rows).bfloat16().float().numpy() != rows).any()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_autocast_trains_a_model_in_float32(tmp_path, precision):
    model, source = made(torch.float32), Labelled(clicked)
    run = make_run()
    lower = with_settings(run, {"worker.0.precision": precision}, place="test")

    train(copy.deepcopy(model), source, run=lower, folder=tmp_path / "run", workers=1)

    expected = with_masters(run, model, source)
    np.testing.assert_allclose(last_state(tmp_path / "run").dense, expected, rtol=0.05, atol=0.01)


def test_other_types_and_cuts_are_refused(tmp_path):
    source = Labelled(clicked)
    with pytest.raises(TrainingError, match=r"parameter `hidden.weight` is float64"):
        prepare(make_run(), tmp_path / "run", model=made(torch.float64), source=source)
    whole = nn.Sequential(nn.Linear(NUM_DENSE, 4), nn.Linear(4, 1)).bfloat16()
    run = cut(with_settings(make_run(), {"model.name": "own"}, place="test"), 0, 2, workers=(1, 1))
    with pytest.raises(TrainingError, match=r"is bfloat16, and the model is cut into stages"):
        prepare(run, tmp_path / "run", model=whole, source=source)
    assert isinstance(run.model, RunModel)
