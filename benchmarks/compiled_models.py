"""What `training.compile` is worth: the same runs with and without it, one worker of one thread.

    python benchmarks/compiled_models.py [--seconds 20] [--batch 1024]

Two models on made clicks: CTR-DNN's tower (matrix products and ReLU), and a residual tower with layer norms, GELU and
gates, which has many small operations between its products. Speed is the median of the last seconds, when everything is
compiled; how long the first steps took is what compiling costs.
"""

from __future__ import annotations

import argparse
import json
import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.data import Clicks
from dovetail.models import SlotEmbedding
from dovetail.runtime import Callback, train

SLOTS, DENSE, WIDTH = 26, 13, 8
UP_TO_SPEED = 20
"""Steps after which everything is compiled."""


class Plain(nn.Module):
    """Rows and numbers through matrix products and ReLU."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.table = SlotEmbedding(num_rows=26_000, width=WIDTH, num_slots=SLOTS)
        sizes = [SLOTS * WIDTH + DENSE, 400, 400, 400]
        layers = [nn.Sequential(nn.Linear(one, other), nn.ReLU()) for one, other in pairwise(sizes)]
        self.tower = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        """Return one score a sample."""
        scores: Tensor = self.tower(torch.cat([self.table(ids, offsets), dense], dim=1))
        return scores


class Gated(nn.Module):
    """A residual step: layer norm, GELU, a gate."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norm, self.both = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what follows `x`."""
        value, gate = self.both(self.norm(x)).chunk(2, dim=1)
        return x + nn.functional.gelu(value) * torch.sigmoid(gate)


class Residual(Plain):
    """Many small operations between the products."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        first = nn.Linear(SLOTS * WIDTH + DENSE, 128)
        self.tower = nn.Sequential(first, *(Gated(128) for _ in range(6)), nn.Linear(128, 1))


def main() -> None:
    """Print a line a model, and the best ratio last."""
    parser = argparse.ArgumentParser(description="Runs with and without torch.compile.")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=1024)
    given = parser.parse_args()
    ratios = []
    for model in (Plain, Residual):
        plain, _ = speed_of(model, given.batch, given.seconds, compiles=False)
        fast, begun_s = speed_of(model, given.batch, given.seconds, compiles=True)
        ratios.append(fast / plain)
        print(
            f"{model.__name__:<9} as it is {plain:>9,.0f} samples/s   compiled {fast:>9,.0f} samples/s   "
            f"{begun_s:.0f} s for the first 20 steps   ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"compiled over as it is, at best: {max(ratios):.2f}")


def speed_of(model: type[nn.Module], batch: int, seconds: int, *, compiles: bool) -> tuple[float, float]:
    """Return the samples/s of a run, and the seconds of its first steps."""

    class Enough(Callback):
        """Stops a run that has gone on for long enough since it was up to speed."""

        first_s = begun_s = 0.0

        def report(self, report: Any) -> None:
            """Look how far it is: what is compiled is compiled in the first steps."""
            now_s = time.monotonic()
            self.first_s = self.first_s or (now_s if report.step >= 1 else 0.0)
            self.begun_s = self.begun_s or (now_s if report.step >= UP_TO_SPEED else 0.0)
            self.stop = bool(self.begun_s) and now_s > self.begun_s + seconds

    torch.manual_seed(0)
    source = Clicks(truth="logistic", num_slots=SLOTS, num_dense=DENSE, rows_per_slot=1000)
    with tempfile.TemporaryDirectory() as folder:
        enough = Enough()
        train(
            model(), source, folder=Path(folder) / "run", workers=1, batch=batch, samples=100_000_000,
            optimizer="adagrad", learning_rate=0.01, compile=compiles, callbacks=[enough], progress=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["samples_per_s"] for line in lines if line["samples_per_s"]]
    return statistics.median(speeds[-max(1, seconds // 2) :]), enough.begun_s - enough.first_s


if __name__ == "__main__":
    main()
