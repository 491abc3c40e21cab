"""Predicted and measured memory of training CTR-DNN in one process, at two sizes.

    python benchmarks/memory.py             # growth of this machine's resident memory
    python benchmarks/memory.py --gpu       # the CUDA allocator's peak

Each size runs in a process of its own: everything is imported and a tiny model trained first, then the model is built
and trained for a few steps. Measured is the peak over what was there before; predicted is what `dovetail plan --memory`
prints for one unit that holds the whole model. The last line is the worst ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SIZES = [{"num_rows": 2_000_000, "width": 16, "batch": 4096}, {"num_rows": 8_000_000, "width": 10, "batch": 1024}]
STEPS = 6


def main() -> None:
    """Print a row a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(measure(**arguments.child, device="cuda" if arguments.gpu else "cpu")))
        return
    ratios = []
    print(f"{'size':48}{'predicted':>14}{'measured':>14}{'ratio':>8}")
    for size in SIZES:
        command = [sys.executable, __file__, "--child", json.dumps(size), *(["--gpu"] if arguments.gpu else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        found = json.loads(done.stdout.splitlines()[-1])
        ratios.append(found["predicted_bytes"] / found["measured_bytes"])
        cells = "".join(f"{found[key] / 1e6:11.1f} MB" for key in ("predicted_bytes", "measured_bytes"))
        print(f"{', '.join(f'{key} {value:,}' for key, value in size.items()):48}{cells}{ratios[-1]:8.3f}")
    print(f"predicted / measured, farthest from one: {max(ratios, key=lambda ratio: abs(ratio - 1)):.3f}")


def measure(*, num_rows: int, width: int, batch: int, device: str) -> dict[str, Any]:
    """Return predicted and measured bytes of one size."""
    import torch

    torch.set_num_threads(1)
    train(num_rows=100, width=width, batch=batch, device=device)  # what comes with the first step stays out
    before = held_bytes(device)
    predicted = train(num_rows=num_rows, width=width, batch=batch, device=device)
    return {"predicted_bytes": predicted, "measured_bytes": held_bytes(device, peak=True) - before}


def train(*, num_rows: int, width: int, batch: int, device: str) -> float:
    """Train for a few steps; return the predicted bytes, worked out from sizes on a small copy of the table."""
    from dovetail.cost import stage_memory
    from dovetail.data import load_data
    from dovetail.models import load_model, make_optimizer, train_step
    from dovetail.profiler.sizes import measure_sizes
    from dovetail.spec import Layer

    source = load_data("clicks")
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=num_rows, width=width).to(device)
    optimizer = make_optimizer(graph, "adam", 1e-4)
    for step in range(STEPS):
        train_step(graph, source.read(step * batch, (step + 1) * batch).to(device), optimizer)
    small = load_model("ctr-dnn", schema=source.schema, num_rows=1000, width=width)
    sizes = measure_sizes(small, source.read(0, batch), optimizer="adam")
    layers = [
        Layer(
            name=block.name,
            kind=block.kind,
            on={},
            weight_bytes=each.weight_bytes * (num_rows / 1000 if block.kind == "embedding" else 1),
            optimizer_bytes=each.optimizer_bytes * (num_rows / 1000 if block.kind == "embedding" else 1),
            activation_bytes=each.activation_bytes,
        )
        for block, each in zip(small.blocks, sizes, strict=True)
    ]
    return stage_memory(layers, units=1).total_bytes


def held_bytes(device: str, *, peak: bool = False) -> float:
    """Return the bytes that this process holds on a device, or the most it ever held."""
    if device == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated())
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    main()
