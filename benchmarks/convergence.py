"""How a model learns with its numbers in fewer bits: every width beside 32, in one process, as a picture.

    python benchmarks/convergence.py --out docs/images/widths.svg

CTR-DNN (26 slots of 1,000 rows x 10, layers of 200 x 2), Adam, batches of 500, the same samples in the same order. All
that a run sends over its links is coded: gradients of rows and layers, rows, and what changed of the layers. The last
line is the largest gap of a final loss (the mean of 100 steps) to that of 32 bits.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from dovetail.charts.convergence import draw_convergence
from dovetail.charts.figure import save_figure
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.launch.in_process import InProcess
from dovetail.runtime.launch.prepare import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunTraining
from dovetail.spec.run_compression import RunCompression
from dovetail.spec.run_optimizer import RunOptimizer

SIDES: dict[str, dict[str, Any]] = {
    **{f"{bits} bits": {"bits": bits} for bits in (32, 16, 8, 4, 2)},
    "1 bit": {"bits": 1},
    "top 5%": {"topk": 0.05},
}


def losses_of(compression: RunCompression, folder: Path, samples: int, evaluate: int) -> tuple[list[float], float]:
    """Return the loss of every step, and the AUC on samples that were not trained on."""
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": 26_000, "hidden": [200, 200]}),
        data=RunData(options={"num_slots": 26, "rows_per_slot": 1000}, samples=samples),
        training=RunTraining(batch=500),
        optimizer=RunOptimizer(name="adam", learning_rate=0.001),
        compression=compression,
    )
    prepare(run, folder)
    alone, losses = InProcess(folder), []
    alone.run(lambda _, loss: losses.append(loss))
    alone.close()
    return losses, evaluate_run(folder, num_samples=evaluate).metrics["auc"]


def main() -> None:
    """Train every side, draw, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--evaluate", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path("out/widths.svg"))
    arguments = parser.parse_args()
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in SIDES.items():
            place = Path(folder) / name.replace(" ", "-").replace("%", "")
            losses[name], auc = losses_of(RunCompression(**settings), place, arguments.samples, arguments.evaluate)
            print(f"{name:8} final loss {np.mean(losses[name][-100:]):.4f}  AUC {auc:.4f}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    save_figure(draw_convergence(losses, "CTR-DNN with its numbers in fewer bits"), arguments.out)
    plain = np.mean(losses["32 bits"][-100:])
    gap = max(abs(float(np.mean(each[-100:])) - plain) for each in losses.values())
    print(f"largest gap to 32 bits: {gap:.4f}")


if __name__ == "__main__":
    main()
