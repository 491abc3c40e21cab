"""A script for torchrun that `dovetail serve` may stop and start again on other workers.

    dovetail submit --name ddp --max-workers 2 -- torchrun --nproc-per-node '{workers}' examples/torchrun_job.py

Three things are Dovetail's: it stops when it is asked to, it says how far it has come, and it keeps its state in the
job's folder. Without a daemon it is a script like any other: `torchrun --nproc-per-node 2 examples/torchrun_job.py`.
"""

import os
from pathlib import Path

import torch
import torch.distributed.nn  # what is loaded while there is a group may hold it to the end, and its threads with it
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.job import report, stop_asked, stop_asked_of_any

STEPS, BATCH = int(os.environ.get("STEPS", "300")), 512


def main() -> None:
    stop_asked()  # from now on SIGTERM is heard
    distributed.init_process_group("gloo")
    train()
    distributed.barrier()  # nobody leaves while another still has to be answered
    distributed.destroy_process_group()  # its threads end here: one that lasts may abort an interpreter that ends


def train() -> None:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = Path(os.environ.get("DOVETAIL_JOB_FOLDER", ".")) / "state.pt"
    step = 0
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    if rank == 0:
        print(f"from step {step} on {world} workers", flush=True)
    while step < STEPS and not stop_asked_of_any():
        draw = torch.Generator().manual_seed(step)  # the batch of a step is the same on any number of workers
        inputs = torch.randn(BATCH, 32, generator=draw)[rank::world]
        loss = nn.functional.mse_loss(shared(inputs).squeeze(1), inputs[:, :4].sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % 20 == 0:
            report(work=step, total=STEPS, loss=loss.item())
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{kept}.new")
        Path(f"{kept}.new").replace(kept)
        report(work=step, total=STEPS)


if __name__ == "__main__":
    main()
