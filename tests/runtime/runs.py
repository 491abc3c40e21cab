"""Small runs as tests start them, and what their checkpoints hold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from torch import nn

from dovetail.data.clicks import Clicks
from dovetail.data.source import Source
from dovetail.embedding import Table
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.messages import Report
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunFaults, RunModel, RunServers, RunTraining, RunWorker
from dovetail.spec.run_sections import RunCompression, RunOptimizer, RunSaving, RunStage

DATA = {"num_slots": 4, "num_multi_valued": 1, "num_dense": 3, "rows_per_slot": 60}
NUM_ROWS = 240
MODEL = RunModel(name="ctr-dnn", options={"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8]})
STEADY = {"epsilon": 0.01}
"""What optimizers that divide add to what they divide by, where a test compares sums made in different orders.

With PyTorch's 1e-8 a parameter whose gradient nearly cancels moves by a part of a whole step that the last bits of its
sum decide, and those differ between makers of processors: no tolerance is right. With 0.01, near the gradients of these
small models, a step of rate 0.01 moves no parameter further than its gradient is large, and what the orders of sums do
stays at 1e-7. That the optimizers are PyTorch's at 1e-8 too is for their own tests, on gradients that are given.
"""
ADAGRAD = RunOptimizer(name="adagrad", learning_rate=0.05, settings=STEADY, rows_settings=STEADY)
ADAM = RunOptimizer(name="adam", learning_rate=0.01, settings=STEADY, rows_settings=STEADY)


def make_run(
    *,
    model: RunModel = MODEL,
    data: dict[str, Any] | None = None,
    samples: int = 2000,
    workers: int | list[RunWorker] = 2,
    servers: int = 1,
    optimizer: RunOptimizer | None = None,
    checkpoint: RunSaving | None = None,
    compression: RunCompression | None = None,
    patience_s: float = 10.0,
    restarts: int = 100,
    restart_workers: bool = True,
    faults: dict[str, Any] | None = None,
    **training: Any,
) -> Run:
    """Return a run of a small model on generated clicks."""
    return Run(
        model=model,
        data=RunData(options=(DATA if data is None else data) | {"num_samples": samples}, block_samples=64),
        training=RunTraining(**({"batch": 200, "seed": 3} | training)),
        optimizer=optimizer or ADAGRAD,
        servers=RunServers(count=servers, host_bytes=1 << 24),
        workers=[RunWorker(count=workers)] if isinstance(workers, int) else workers,
        checkpoint=checkpoint or RunSaving(),
        compression=compression or RunCompression(),
        faults=RunFaults(patience_s=patience_s, restarts=restarts, restart_workers=restart_workers, **(faults or {})),
    )


def cut(run: Run, *lasts: int, workers: tuple[int, ...]) -> Run:
    """Return a run whose stages end with these layers, with so many workers in each."""
    firsts = (0, *(last + 1 for last in lasts[:-1]))
    return msgspec.structs.replace(
        run,
        stages=[RunStage(first_layer=first, last_layer=last) for first, last in zip(firsts, lasts, strict=True)],
        workers=[RunWorker(name=f"stage-{number}", count=count, stage=number) for number, count in enumerate(workers)],
    )


def clicks(**options: Any) -> Clicks:
    """Return the data of such a run."""
    return Clicks(**(DATA | options))


def train(
    run: Run,
    folder: Path,
    *,
    model: nn.Module | None = None,
    source: Source | None = None,
    resume: bool = False,
    meanwhile: Callable[[LocalRun, Report], None] | None = None,
    timeout_s: float = 240.0,
) -> LocalRun:
    """Run to the end; `meanwhile` is called with every report."""
    prepare(run, folder, model=model, source=source, resume=resume)
    with LocalRun(folder, model=model, source=source) as local:
        local.wait(None if meanwhile is None else lambda report: meanwhile(local, report), timeout_s=timeout_s)
    return local


def train_until(run: Run, folder: Path, step: int, *, timeout_s: float = 200.0, **how: Any) -> None:
    """Run until a checkpoint of at least `step` steps is kept, then end everything at once."""
    prepare(run, folder, **how)
    with LocalRun(folder) as local:
        begun_s = time.monotonic()
        while (report := local.look()) is None or report.checkpoint_step < step:
            if report is not None and report.state in ("done", "failed"):
                raise TrainingError(f"the run was {report.state} too early: {report.error}", hint="")
            if time.monotonic() - begun_s > timeout_s:
                raise TrainingError("the checkpoint did not come", hint="")
        for child in local.children.values():
            child.handle.kill()


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint holds: dense parameters and their state, the rows of each table by rising key."""

    manifest: checkpoints.RunManifest
    dense: np.ndarray
    dense_state: dict[str, np.ndarray]
    keys: list[np.ndarray]
    rows: list[np.ndarray]
    """Values, then optimizer state."""


def state_in(folder: Path) -> State:
    """Return what the checkpoint in a folder holds."""
    manifest = checkpoints.RunManifest.read(folder)
    dense, dense_state = checkpoints.load_dense(folder, manifest)
    all_keys, all_rows = [], []
    for place in sorted(folder.glob("table-*")):
        shards = [manifest.table_at(folder, int(place.name[6:]), s) for s in range(manifest.num_servers)]
        with Table.load(shards) as table:
            keys = np.sort(table.keys())
            all_keys.append(keys)
            all_rows.append(table.rows(keys))
    return State(manifest, dense, dense_state, all_keys, all_rows)


def last_state(run_folder: Path) -> State:
    """Return what the newest checkpoint of a run holds."""
    return state_in(checkpoints.newest(run_folder))


def assert_same_state(one: State, other: State, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Check that two states are the same, rows and optimizer state included."""
    np.testing.assert_allclose(one.dense, other.dense, rtol=rtol, atol=atol)
    assert one.dense_state.keys() == other.dense_state.keys()
    for name, vector in one.dense_state.items():
        np.testing.assert_allclose(vector, other.dense_state[name], rtol=rtol, atol=atol)
    assert len(one.keys) == len(other.keys)
    for table, keys in enumerate(one.keys):
        np.testing.assert_array_equal(keys, other.keys[table])
        np.testing.assert_allclose(one.rows[table], other.rows[table], rtol=rtol, atol=atol)


def kill(local: LocalRun, name: str, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process of a run, where it lives."""
    child = local.children.get(name)
    if child is not None and child.how_it_ended() is None:
        os.kill(child.process_id, number)


def processes_in(folder: Path) -> list[int]:
    """Return the processes of a run that live: each has its log open."""
    logs, found = str(folder / "logs"), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process.pid] if any(file.path.startswith(logs) for file in process.open_files()) else []
    return found


def assert_nothing_left(local: LocalRun) -> None:
    """Check that no process of a run lives, and that its shared memory is gone."""
    for child in local.children.values():
        assert child.how_it_ended() is not None, child.name
    assert processes_in(local.folder) == []
    assert local.blueprint.lanes is None or not Path(local.blueprint.lanes).exists()


def log_of(folder: Path, name: str) -> str:
    """Return what a process wrote to its log."""
    return (folder / "logs" / f"{name}.log").read_text()
