"""How a model learns with its numbers in fewer bits: every width beside 32, in one process, as a picture.

    python benchmarks/convergence.py --out out/widths.svg
    python benchmarks/convergence.py --shapes all --seeds 1,2,3 --sides 32,8,4,auto

CTR-DNN of several shapes, the same samples in the same order on every side. All that a run sends over its links is
coded: gradients of rows and layers, rows, and what changed of the layers. "auto" chooses widths as a worker does, on a
made-up link of 100 Mbit/s whose transfers take as long as their bytes say; nothing here depends on a clock, so a busy
machine finds the same. The picture is of the first shape and seed. The last line is the largest gap of an AUC to that
of 32 bits, for "auto" (without it: for all).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from dovetail.charts.figure import save_figure
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.spec.run import Run, RunData, RunModel, RunTraining
from dovetail.spec.run_sections import RunCompression, RunOptimizer
from testbed.direct_servers import DirectServers
from testbed.pictures import draw_convergence

BYTES_PER_S, COMPUTE_S = 12.5e6, 0.06
"""Of the made-up link, and how long a worker computes beside it for a task."""
NUM_SLOTS, ROWS = 26, 1000


@dataclass(frozen=True)
class Shape:
    """A model and how it is trained."""

    hidden: list[int]
    width: int = 10
    batch: int = 2000
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "adam", "learning_rate": 0.001})


SHAPES = {
    "400x3": Shape([400, 400, 400]),
    "200x2": Shape([200, 200], batch=500),
    "wide": Shape([1024], width=16),
    "deep": Shape([128] * 6, batch=1000),
    "adagrad": Shape([400, 400, 400], optimizer={"name": "adagrad", "learning_rate": 0.02}),
    "momentum": Shape([400, 400, 400], batch=500, optimizer={"name": "momentum", "learning_rate": 0.1}),
}


class MadeUpLink(LinkCompression):
    """The links of the only worker, as slow as said."""

    def acknowledged(self, server: int, seconds: float, *, counts: bool, dense: bool) -> None:
        """Have a push take as long as its bytes, and a task be done."""
        link = self._links[server]
        link.down.seconds = link.down.sent_bytes / BYTES_PER_S
        super().acknowledged(server, link.up.sent_bytes / BYTES_PER_S, counts=counts, dense=dense)
        self.task_done(COMPUTE_S)


def settings_of(side: str) -> dict[str, Any]:
    """Return what a run file says of a side: "auto", a number of bits, or the part that goes of top-k."""
    if side.startswith("top"):
        return {"topk": float(side.removeprefix("top")) / 100}
    return {"bits": side if side == "auto" else int(side)}


def name_of(side: str) -> str:
    """Return what the picture calls a side."""
    if side.startswith("top"):
        return f"top {side.removeprefix('top')}%"
    return side if side == "auto" else f"{side} bit" + "s" * (side != "1")


def train(shape: Shape, side: str, seed: int, folder: Path, samples: int) -> tuple[list[float], str]:
    """Return the loss of every step, and the widths at the end where they are chosen."""
    run = Run(
        model=RunModel(
            name="ctr-dnn", options={"num_rows": NUM_SLOTS * ROWS, "width": shape.width, "hidden": shape.hidden}
        ),
        data=RunData(options={"num_slots": NUM_SLOTS, "rows_per_slot": ROWS, "seed": seed}, samples=samples),
        training=RunTraining(batch=shape.batch, seed=seed),
        optimizer=RunOptimizer(**shape.optimizer),
        compression=RunCompression(**settings_of(side)),
    )
    prepare(run, folder)
    wire = MadeUpLink(Blueprint.read(folder), is_slow=True) if side == "auto" else None
    alone, losses = DirectServers(folder, wire=wire), []
    alone.run(lambda _, loss: losses.append(loss))
    alone.close()
    widths = f"  {wire._links[0].up.bits} bits there, {wire._links[0].down.bits} back" if wire is not None else ""
    return losses, widths


def main() -> None:
    """Train every side, draw, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--evaluate", type=int, default=500_000)
    parser.add_argument("--shapes", default="400x3", help=f"all, or some of {', '.join(SHAPES)}")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--sides", default="32,16,8,4,2,1,top5,auto", help="the first is what others are held against")
    parser.add_argument("--out", type=Path, default=Path("out/widths.svg"))
    arguments = parser.parse_args()
    shapes = list(SHAPES) if arguments.shapes == "all" else arguments.shapes.split(",")
    sides, picture = arguments.sides.split(","), {}
    gaps: dict[str, list[float]] = {side: [] for side in sides}
    for shape in shapes:
        for seed in map(int, arguments.seeds.split(",")):
            plain = 0.0
            for side in sides:
                with tempfile.TemporaryDirectory() as folder:
                    losses, widths = train(SHAPES[shape], side, seed, Path(folder) / "run", arguments.samples)
                    auc = evaluate_run(Path(folder) / "run", num_samples=arguments.evaluate).metrics["auc"]
                plain = auc if side == sides[0] else plain
                gaps[side].append(auc - plain)
                if len(gaps[sides[0]]) == 1:
                    picture[name_of(side)] = losses
                final = f"final loss {np.mean(losses[-20:]):.4f}  AUC {auc:.4f} ({auc - plain:+.4f})"
                print(f"{shape:9} seed {seed}  {name_of(side):8} {final}{widths}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    window = max(1, min(20, len(next(iter(picture.values()))) // 4))
    save_figure(draw_convergence(picture, "CTR-DNN with its numbers in fewer bits", window=window), arguments.out)
    for side in sides[1:]:
        print(f"{name_of(side):8} AUC off by up to {max(map(abs, gaps[side])):.4f}, {np.mean(gaps[side]):+.4f} mean")
    judged = ["auto"] if "auto" in sides else sides[1:]
    print(f"largest gap of an AUC to {sides[0]} bits: {max(abs(gap) for side in judged for gap in gaps[side]):.4f}")


if __name__ == "__main__":
    main()
