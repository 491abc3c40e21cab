"""PyTorch DDP under torchrun's elastic agents: what `benchmarks/resize.py` compares with.

Started by torchrun. The dense layers of the same size as the other sides' model, on random samples; the first worker
notes when each step ends, and keeps the state after each, so that workers that are started again go on from it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train until somebody ends it."""
    folder, batch = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    share = batch // dist.get_world_size()
    module = nn.Sequential(nn.Linear(221, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    state = folder / "state.pt"
    if state.exists():
        module.load_state_dict(torch.load(state, weights_only=True))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    while True:
        features, labels = torch.randn(share, 221), torch.rand(share, 1).round()
        loss = nn.functional.binary_cross_entropy_with_logits(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save(module.state_dict(), folder / "new.pt")
            (folder / "new.pt").replace(state)
            with (folder / "steps").open("a") as file:
                file.write(f"{time.time()} {dist.get_world_size()}\n")
        time.sleep(0.01)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    main()
