"""How much longer a step takes than its slowest stage: what filling and draining a pipeline costs.

    python benchmarks/bubble.py         # three stages; with 4 cores or less each worker has a quota of 0.6 (root)

CTR-DNN with nine equal layers in `sync`, cut into three stages of one worker each where the profile says that they take
the same time, in 32 micro-batches a step. The slowest stage is the one that computed longest in the run itself. The
ratio of a step to it comes last.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import accumulate, combinations
from pathlib import Path

from dovetail.data.load import load_data
from dovetail.models.load import load_model
from dovetail.profiler.layers import measure_layers
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunOptimizer, RunStage
from prediction_stages import look

OPTIONS = {"num_rows": 26 * 1000, "width": 4, "hidden": [512] * 9}
MICRO_BATCHES = 32


def main() -> None:
    """Cut, run, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=8192)
    arguments = parser.parse_args()
    quota = 0.6 if len(os.sched_getaffinity(0)) <= 4 else None
    lasts = equal_cuts(layer_seconds())
    print(f"stages end with layers {', '.join(map(str, lasts))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(run_of(lasts, arguments.batch, quota), Path(folder) / "run")
        with LocalRun(Path(folder) / "run") as running:
            while running.report is None or running.report.step < 3:
                look(running)
            first, start = running.report, time.perf_counter()
            while time.perf_counter() - start < arguments.seconds:
                look(running)
            seconds, last = time.perf_counter() - start, running.report
    steps = (last.samples - first.samples) / arguments.batch
    step_s = seconds / steps
    busy_s = [(b - a) / steps for a, b in zip(first.stages_s, last.stages_s, strict=True)]
    print("a step: " + f"{step_s * 1e3:.0f} ms; stages " + ", ".join(f"{each * 1e3:.0f} ms" for each in busy_s))
    print(f"a step takes {step_s / max(busy_s):.3f}x its slowest stage")


def layer_seconds() -> list[float]:
    """Return what each layer takes on one thread."""
    import torch

    torch.set_num_threads(1)
    source = load_data("clicks")
    graph = load_model("ctr-dnn", schema=source.schema, **OPTIONS)
    batches = [source.read(turn * 256, (turn + 1) * 256) for turn in range(4)]
    return [layer.total_s for layer in measure_layers(graph, batches, optimizer="adam")]


def equal_cuts(seconds: list[float]) -> tuple[int, int, int]:
    """Return the last layers of three stages whose slowest takes the least time."""
    ends = [0.0, *accumulate(seconds)]
    end = len(seconds) - 1
    pairs = combinations(range(end), 2)
    first, second = min(
        pairs, key=lambda at: max(ends[at[0] + 1], ends[at[1] + 1] - ends[at[0] + 1], ends[-1] - ends[at[1] + 1])
    )
    return first, second, end


def run_of(lasts: tuple[int, int, int], batch: int, quota: float | None) -> Run:
    """Return the run."""
    firsts = (0, lasts[0] + 1, lasts[1] + 1)
    return Run(
        model=RunModel(name="ctr-dnn", options=OPTIONS),
        data=RunData(samples=200_000),
        training=RunTraining(batch=batch, epochs=100_000, dense="ring", micro_batch=batch // MICRO_BATCHES),
        optimizer=RunOptimizer(name="adam", learning_rate=1e-4),
        servers=RunServers(count=1),
        stages=[RunStage(first_layer=first, last_layer=last) for first, last in zip(firsts, lasts, strict=True)],
        workers=[RunWorker(name=f"stage-{number}", stage=number, cores=quota) for number in range(3)],
    )


if __name__ == "__main__":
    main()
