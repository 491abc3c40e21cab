"""What a run in one process is: one worker, on a GPU or on all cores of this machine."""

from __future__ import annotations

import msgspec
import torch

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.devices import check_device, num_gpus
from dovetail.spec.run import Run, RunWorker


def device_of(run: Run) -> str:
    """Return where the layers of a run in one process are; absent, on a GPU where there is one."""
    if run.table.device is not None:
        return run.table.device
    if run.privacy.is_private and run.table.place != "device":
        return "cpu"  # where gradients of single samples are told apart
    return "cuda" if run.table.place == "device" or num_gpus() else "cpu"


def has_device_tier(run: Run) -> bool:
    """Say whether rows lie on the device where the layers are, over host memory."""
    return run.table.place == "device" or not device_of(run).startswith("cpu")


FLOPS_A_THREAD = 20e6
"""Of a forward and backward pass, for each thread at least. Threads that compute meet at every matrix product: where
those are small they gain little, and wait long whenever another thread, such as one that reads, has a core."""


def threads_of(run: Run, flops: float | None = None) -> int:
    """Return how many threads compute: as many as the run says, else up to one a core, as PyTorch takes.

    Where a forward pass of a sample is known to take so many `flops`, no more than have enough to do.
    """
    if run.table.threads is not None:
        return run.table.threads
    threads = run.workers[0].threads
    if threads > 1:
        return threads
    most = torch.get_num_threads()
    if flops is None or not device_of(run).startswith("cpu"):
        return most
    return max(1, min(most, int(3 * flops * (run.training.batch or 1) / FLOPS_A_THREAD)))


def in_one_process(run: Run, *, other_hosts: bool = False) -> Run:
    """Return the run as one process does it; refuse what that cannot, such as workers on other hosts."""
    if other_hosts:
        raise TrainingError(
            "the rows lie with the one process that trains, and --on starts workers on other hosts",
            hint='leave --on away, or set table.place = "servers"',
        )
    if run.stages:
        raise TrainingError(
            "the rows lie with the one process that trains, and the run is cut into stages",
            hint='leave [[stage]] away, or set table.place = "servers"',
        )
    device = device_of(run)
    check_device(device, f'table.device = "{device}"')
    worker = RunWorker(device=device, precision=run.workers[0].precision, threads=run.workers[0].threads)
    training = msgspec.structs.replace(run.training, mode="sync", dense="ps")
    servers = msgspec.structs.replace(run.servers, count=1)
    table = msgspec.structs.replace(run.table, device=device)
    return msgspec.structs.replace(run, workers=(worker,), servers=servers, table=table, training=training)


def in_words(run: Run) -> str:
    """Return a run in one process in words."""
    if has_device_tier(run):
        return f"one process on {device_of(run)}, rows in its memory"
    threads = threads_of(run)
    return f"one process on {threads} core{'s' if threads > 1 else ''}, rows in memory"
