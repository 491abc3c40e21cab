"""The hook for DistributedDataParallel: real processes over Gloo end together, near where they end without it."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from dovetail.codecs import DDPState, ddp_hook

rank, store, bits = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
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


def train(tmp_path, bits):
    """Return what both processes found."""
    store = tmp_path / f"store-{bits}"
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen([*command, str(rank), str(store), str(bits)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        return [json.loads(rank.communicate(timeout=150)[0].strip().splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.processes
def test_processes_with_the_hook_hold_the_same_parameters_and_learn_as_without_it(tmp_path):
    plain, coded = train(tmp_path, 32), train(tmp_path, 2)

    assert coded[0]["sum"] == coded[1]["sum"]
    assert coded[0]["kept"] > 0
    assert coded[0]["loss"] < 2 * plain[0]["loss"] + 0.5
    assert plain[0]["loss"] < 10  # of 40 where nothing is learnt
