"""A small model under DDP that torchrun may restart at any step: `benchmarks/resize.py` runs it.

    torchrun --nnodes 1:4 --nproc-per-node 1 ... benchmarks/elastic_ddp.py FOLDER

It keeps a checkpoint every few steps, goes on from it, and its first process writes when each step ended.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 2_000
SLOTS, ROWS, WIDTH = 26, 1_000, 8
EVERY = 20


def main() -> None:
    """Train until somebody ends it."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(SLOTS * ROWS, WIDTH),
        nn.Flatten(),
        nn.Linear(SLOTS * WIDTH, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    step, kept = 0, folder / "state.pt"
    if kept.exists():
        saved = torch.load(kept, weights_only=True)
        model.load_state_dict(saved["model"])
        step = int(saved["step"])
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(shared.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    with (folder / f"steps-{rank}").open("a") as steps:
        while True:
            draw = torch.Generator().manual_seed(step * world + rank)
            keys = torch.randint(0, SLOTS * ROWS, (BATCH // world, SLOTS), generator=draw)
            loss = loss_of(shared(keys).squeeze(1), (keys.sum(1) % 2).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                steps.write(f"{time.time()} {world}\n")
                steps.flush()
                if step % EVERY == 0:
                    torch.save({"model": model.state_dict(), "step": step}, f"{kept}.new")
                    Path(f"{kept}.new").replace(kept)


if __name__ == "__main__":
    main()
