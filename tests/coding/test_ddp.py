"""The hook for DistributedDataParallel: real processes over Gloo end together, near where they end without it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dovetail.codecs import DDPState


class MadeUpBucket:
    """A bucket of parameters, as DDP hands it to a hook."""

    def __init__(self, index, parameters):
        self._index, self._parameters = index, parameters

    def index(self):
        return self._index

    def parameters(self):
        return self._parameters


def residual_in(state, index, parameters):
    bucket = MadeUpBucket(index, parameters)
    return state.residual_of(bucket, state.numbers_in(bucket))


def test_what_is_kept_back_stays_with_its_parameters_when_buckets_are_made_anew():
    one, two, three = (torch.zeros(size) for size in (3, 3, 2))
    state = DDPState(bits=1)
    residual_in(state, 0, [one, two])[:] = [1, 1, 1, 2, 2, 2]
    residual_in(state, 1, [three])[:] = 3

    np.testing.assert_array_equal(residual_in(state, 0, [two, one]), [2, 2, 2, 1, 1, 1])
    np.testing.assert_array_equal(residual_in(state, 0, [three, two, one]), [3, 3, 2, 2, 2, 1, 1, 1])
    residual_in(state, 0, [three, two, one])[0] = 4

    again, (one, two, three) = DDPState(bits=1), (torch.zeros(size) for size in (3, 3, 2))
    again.load_state_dict(state.state_dict())
    np.testing.assert_array_equal(residual_in(again, 0, [one, two]), [1, 1, 1, 2, 2, 2])  # as a process begins
    np.testing.assert_array_equal(residual_in(again, 1, [three]), [4, 3])


def test_what_was_kept_back_of_another_model_is_refused():
    state = DDPState(bits=1)
    residual_in(state, 0, [torch.zeros(3)])

    again = DDPState(bits=1)
    again.load_state_dict(state.state_dict())

    with pytest.raises(ValueError, match="parameter 0 is that of another model"):
        residual_in(again, 0, [torch.zeros(4)])


PROGRAM = """
import json, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from dovetail.codecs import DDPState, ddp_hook

rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for bits in (32, 2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 1))
    wrapped = DistributedDataParallel(model)
    state = DDPState(bits=bits)
    wrapped.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.randn(40)
    draw = torch.Generator().manual_seed(rank + 1)
    for step in range(200):
        x = torch.randn(64, 40, generator=draw)
        loss = nn.functional.mse_loss(wrapped(x).squeeze(1), x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    saved = state.state_dict()
    again = DDPState(bits=bits)
    again.load_state_dict(saved)
    kept = sum(float((abs(each)).sum()) for each in again.residuals.values())
    total = sum(float(p.double().sum()) for p in model.parameters())
    print(json.dumps({"loss": float(loss.detach()), "sum": total, "kept": kept}), flush=True)
distributed.destroy_process_group()
"""


def train(tmp_path):
    """Return what both processes found, in 32 bits and in 2."""
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=150)[0].strip().splitlines()[-2:] for rank in ranks]
        return zip(*([json.loads(line) for line in lines] for lines in said), strict=True)
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.processes
def test_processes_with_the_hook_hold_the_same_parameters_and_learn_as_without_it(tmp_path):
    plain, coded = train(tmp_path)

    assert coded[0]["sum"] == coded[1]["sum"]
    assert coded[0]["kept"] > 0
    assert coded[0]["loss"] < 2 * plain[0]["loss"] + 0.5
    assert plain[0]["loss"] < 10  # of 40 where nothing is learnt
