"""What privacy costs: processor time a step against plain training and against Opacus, and AUC at three budgets.

    python benchmarks/private.py                  # all of it
    python benchmarks/private.py --quality ""     # speed alone
    python benchmarks/private.py --seconds 0      # AUC alone

Speed: CTR-DNN (26 slots of 1,000 and of 100,000 rows x 10, three layers of 400) in one process with one thread, batches
of 1,024 of samples in memory; user and system time of the whole process a step, sides in turn, the median of rounds.
Dovetail draws its batches, clips, adds noise and keeps its record; Opacus gets batches that are made already. Its side
runs in both of its ways, per-sample gradients written out (`hooks`, where they fit into memory) and norms first
(`ghost`), and the faster one counts. Everything goes by SGD.

Quality: CTR-DNN on generated clicks, AUC on samples that were not trained on, for each budget the mean of the seeds.

The ratios come last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

SLOTS, WIDTH, HIDDEN, NUM_DENSE = 26, 10, 400, 13
BATCH, SAMPLES, WARM_STEPS = 1_024, 65_536, 40
CLIP, NOISE, RATE = 1.0, 1.0, 0.1
SIDES = ("plain", "private", "opacus hooks", "opacus ghost")
MOST_WRITTEN_OUT = 100_000
"""Rows up to which Opacus can hold the gradients of a batch's samples, each of the size of the table."""


def main() -> None:
    """Run all sides in turn and print their figures, the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each side is measured; 0: not at all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="1000,100000", help="rows of each slot, of one table after the other")
    parser.add_argument("--quality", default="1,3,8", help="budgets whose AUC is found; empty: none")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=400_000, help="that quality is trained on")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        made_by = of_opacus if arguments.side.startswith("opacus") else of_dovetail
        print(json.dumps(made_by(arguments.side, arguments.seconds, int(arguments.rows))))
        return
    ratios = []
    if arguments.quality:
        ratios += quality([float(word) for word in arguments.quality.split(",")], arguments.seeds, arguments.samples)
    for rows in map(int, arguments.rows.split(",") if arguments.seconds > 0 else ()):
        ratios += speed(arguments.seconds, arguments.rounds, rows)
    print("\n".join(ratios))


# Speed.


def speed(seconds: float, rounds: int, rows: int) -> list[str]:
    """Print what a step takes each side with a table of so many rows a slot; return the ratios in words."""
    sides = [side for side in SIDES if side != "opacus hooks" or SLOTS * rows <= MOST_WRITTEN_OUT]
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, times in found.items():
            command = [sys.executable, __file__, "--side", side, "--seconds", str(seconds), "--rows", str(rows)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times.append(float(json.loads(done.stdout.splitlines()[-1])))
    took = {side: statistics.median(times) for side, times in found.items()}
    for side, times in found.items():
        each = ", ".join(f"{1e3 * seconds:.1f}" for seconds in times)
        print(
            f"{side}, {SLOTS * rows:,} rows: {1e3 * took[side]:.1f} ms of processor time "
            f"a step of {BATCH} samples ({each})"
        )
    rival = min((side for side in sides if side.startswith("opacus")), key=lambda side: took[side])
    return [
        f"speed of private over plain, {SLOTS * rows:,} rows: {took['plain'] / took['private']:.2f}x",
        f"speed of private over {rival}, {SLOTS * rows:,} rows: {took[rival] / took['private']:.2f}x",
    ]


def of_dovetail(side: str, seconds: float, rows: int) -> float:
    """Return the processor time of a step of Dovetail."""
    import torch

    import dovetail

    torch.set_num_threads(1)
    marks: list[tuple[int, float, float]] = []

    def mark(report: Any) -> None:
        if report.step >= WARM_STEPS:
            marks.append((report.step, time.process_time(), time.perf_counter()))

    privacy = {"epsilon": 1e3, "delta": 1e-6, "clip": CLIP, "noise": NOISE, "accountant": "rdp"}
    with tempfile.TemporaryDirectory(prefix="dovetail-benchmark-") as folder:
        dovetail.train(
            "ctr-dnn",
            in_memory(rows),
            folder=Path(folder) / "run",
            model_options={"num_rows": SLOTS * rows, "width": WIDTH, "hidden": [HIDDEN] * 3},
            batch=BATCH,
            epochs=1_000,
            optimizer={"name": "sgd", "learning_rate": RATE},
            table={"threads": 1},
            on_report=mark,
            stop=lambda: bool(marks) and time.perf_counter() - marks[0][2] > seconds,
            **({"privacy": privacy} if side == "private" else {}),
        )
    (first, begun_s, _), (last, ended_s, _) = marks[0], marks[-1]
    return (ended_s - begun_s) / (last - first)


def in_memory(rows: int) -> Any:
    """Return samples in memory, which cost next to nothing to read."""
    sys.path.insert(0, str(Path(__file__).parent / "rivals"))
    from memory_source import MemorySource

    return MemorySource(data_file(rows))


def data_file(rows: int) -> Path:
    """Return the file of samples that all sides read; it is made where it is not there."""
    import numpy as np

    from dovetail.data import Clicks

    path = Path(tempfile.gettempdir()) / f"dovetail-private-{SLOTS}x{rows}-{SAMPLES}.npz"
    if not path.exists():
        source = Clicks(num_slots=SLOTS, rows_per_slot=rows, num_multi_valued=0, num_dense=NUM_DENSE)
        batch = source.read(0, SAMPLES)
        partial = path.with_suffix(".partial.npz")
        np.savez(
            partial,
            ids=batch.ids.numpy().reshape(SAMPLES, SLOTS),
            dense=batch.dense.numpy(),
            labels=batch.labels.numpy().astype(np.int64),
        )
        partial.rename(path)
    return path


def of_opacus(side: str, seconds: float, rows: int) -> float:
    """Return the processor time of a step of Opacus: clipping and noise of the same model."""
    import numpy as np
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import Tensor, nn

    class CtrDnn(nn.Module):
        """The same model, its slots' rows in one table."""

        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(SLOTS * rows, WIDTH)
            sizes = [NUM_DENSE + SLOTS * WIDTH, HIDDEN, HIDDEN, HIDDEN]
            layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
            self.layers = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))

        def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
            found: Tensor = self.layers(torch.cat([dense, self.rows(ids).flatten(1)], dim=1))
            return found.squeeze(1)

    torch.set_num_threads(1)
    data = np.load(data_file(rows))
    dense, ids = torch.from_numpy(data["dense"]), torch.from_numpy(data["ids"])
    labels = torch.from_numpy(data["labels"]).float()
    batches = list(zip(dense.split(BATCH), ids.split(BATCH), labels.split(BATCH), strict=True))
    model = CtrDnn()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    how = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": BATCH}
    private: Any
    if side == "opacus ghost":
        private = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(sgd, **how)
        loss_of = DPLossFastGradientClipping(private, optimizer, nn.BCEWithLogitsLoss(reduction="mean"))
    else:
        private, optimizer = GradSampleModule(model), DPOptimizer(sgd, **how)
        loss_of = nn.BCEWithLogitsLoss()

    def step(number: int) -> None:
        numbers, slots, clicked = batches[number % len(batches)]
        optimizer.zero_grad()
        loss_of(private(numbers, slots), clicked).backward()
        optimizer.step()

    for number in range(3):
        step(number)
    begun_s, end_s, number = time.process_time(), time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s or number < 3:
        step(number)
        number += 1
    return (time.process_time() - begun_s) / number


# Quality.


def quality(budgets: list[float], seeds: int, samples: int) -> list[str]:
    """Print the AUC of plain and private training; return what each budget keeps of it, in words."""
    plain = statistics.mean(auc_of(None, seed, samples) for seed in range(seeds))
    print(f"plain: AUC {plain:.4f}, {samples:,} samples, {seeds} seeds")
    lines = []
    for epsilon in budgets:
        found = [auc_of(epsilon, seed, samples) for seed in range(seeds)]
        mean = statistics.mean(found)
        print(f"epsilon {epsilon:g}: AUC {mean:.4f} ({', '.join(f'{auc:.4f}' for auc in found)})")
        lines.append(f"AUC at epsilon {epsilon:g} beside plain: {mean:.4f} / {plain:.4f}")
    return lines


def auc_of(epsilon: float | None, seed: int, samples: int) -> float:
    """Return the AUC of a model on samples beyond those that it was trained on."""
    import dovetail

    how: dict[str, Any] = {"optimizer": {"name": "adam", "learning_rate": 0.005}, "batch": 2_000, "epochs": 2}
    if epsilon is not None:
        how = {
            "optimizer": {"name": "adam", "learning_rate": 0.005, "rows": "sgd", "rows_learning_rate": 20.0},
            "batch": 8_000,
            "epochs": 6,
            "privacy": {"epsilon": epsilon, "delta": 0.1 / samples, "clip": 0.5},
        }
    with tempfile.TemporaryDirectory(prefix="dovetail-benchmark-") as folder:
        place = Path(folder) / "run"
        dovetail.train(
            "ctr-dnn",
            "clicks",
            folder=place,
            samples=samples,
            seed=seed,
            data_options={"truth": "logistic", "rows_per_slot": 100},
            model_options={"num_rows": 2_600, "width": 8, "hidden": [64, 64]},
            **how,
        )
        return float(dovetail.evaluate(place).metrics["auc"])


if __name__ == "__main__":
    main()
