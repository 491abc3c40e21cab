"""Compile the kernels that most tests need: `.ci/compile.py`, beside the type checker and before `pytest`.

Under two processes it would happen twice, and under coverage take half as long again.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the test bed is no part of the package

import msgspec

from dovetail.planner.compile import compile_kernels
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.scheduler.registry import POLICIES, make_policy
from dovetail.simulator import simulate
from dovetail.simulator.traces.make import make_workload
from dovetail.spec.run import Run, RunData, RunModel, RunOptimizer, RunTraining
from dovetail.spec.run_sections import RunTable
from testbed.direct_servers import DirectServers


def train(optimizer: str, folder: Path) -> None:
    """Train a small model in this process, over servers and with rows of its own."""
    run = Run(
        model=RunModel(name="ctr-dnn", options={"num_rows": 100, "width": 4, "hidden": [4]}),
        data=RunData(options={"rows_per_slot": 10}, samples=200),
        training=RunTraining(batch=100),
        optimizer=RunOptimizer(name=optimizer, learning_rate=0.01),
    )
    prepare(run, folder / "servers")
    alone = DirectServers(folder / "servers")
    alone.run()
    alone.close()
    local = msgspec.structs.replace(run, table=RunTable(place="local"))
    prepare(local, folder / "local")
    with Trainer(folder / "local") as trainer:
        trainer.wait()


if __name__ == "__main__":
    compile_kernels(clock=time.perf_counter)
    workload = make_workload(num_jobs=3, with_loss=False)
    for name in POLICIES:
        simulate(workload, make_policy(name), name=name)
    with tempfile.TemporaryDirectory() as folder:
        for optimizer in ("sgd", "adagrad", "adam"):
            train(optimizer, Path(folder) / optimizer)
