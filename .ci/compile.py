"""Compile the kernels that most tests need: `.ci/compile.py`, beside the type checker and before `pytest`.

Under two processes it would happen twice, and under coverage take half as long again.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from dovetail.planner.compile import compile_kernels
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.single.in_process import InProcess
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.simulator import simulate
from dovetail.simulator.traces.make import make_workload
from dovetail.spec.run import Run, RunData, RunModel, RunOptimizer, RunTraining


def train(optimizer: str, folder: Path) -> None:
    """Train a small model in this process."""
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": 100, "width": 4, "hidden": [4]}),
        data=RunData(options={"rows_per_slot": 10}, samples=200),
        training=RunTraining(batch=100),
        optimizer=RunOptimizer(name=optimizer, learning_rate=0.01),
    )
    prepare(run, folder)
    alone = InProcess(folder)
    alone.run()
    alone.close()


if __name__ == "__main__":
    compile_kernels(clock=time.perf_counter)
    workload = make_workload(num_jobs=3, with_loss=False)
    for name in POLICIES:
        simulate(workload, make_policy(name), name=name)
    with tempfile.TemporaryDirectory() as folder:
        for optimizer in ("sgd", "adagrad", "adam"):
            train(optimizer, Path(folder) / optimizer)
