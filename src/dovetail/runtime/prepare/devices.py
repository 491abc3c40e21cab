"""Whether a worker's device is there: asked before anything is started."""

from __future__ import annotations

import torch

from dovetail.runtime.errors import TrainingError


def num_gpus() -> int:
    """Return how many GPUs PyTorch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_bytes() -> float | None:
    """Return the memory of the smallest GPU that PyTorch can use here; None where there is none."""
    sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(num_gpus())]
    return float(min(sizes)) if sizes else None


def check_device(device: str, where: str) -> None:
    """Refuse a device that this machine does not have; `where` is what the error calls its place."""
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise TrainingError(f"{where}: there is no device `{device}`", hint="write cpu, cuda, cuda:0, ...") from None
    if kind.type == "cuda":
        if not torch.cuda.is_available():
            raise TrainingError(f"{where}: PyTorch finds no CUDA on this machine", hint='use "cpu", or mend the driver')
        count = torch.cuda.device_count()
        if (kind.index or 0) >= count:
            raise TrainingError(f"{where}: this machine has {count} of them", hint=f"use cuda:0 to cuda:{count - 1}")
    elif kind.type not in ("cpu", "mps", "xpu"):
        raise TrainingError(f"{where}: nothing is computed on `{device}`", hint="write cpu, cuda, cuda:0, ...")
