"""Blueprints of runs that exist nowhere else."""

from __future__ import annotations

from typing import Any

from dovetail.runtime.blueprint import Blueprint, ServerSpec, StageWorkers
from dovetail.spec.run import Run, RunFaults, RunModel, RunTraining, RunWorker
from dovetail.spec.run_sections import RunCompression, RunOptimizer, RunSaving, RunStage


def make_blueprint(
    *, samples: int = 12, batch: int = 4, servers: int = 2, workers: int = 2, every_steps: int | None = 1,
    clip: bool = False, redo_log: bool = True, bits: Any = 32, stages: tuple[int, ...] = (),
    sparse: tuple[int, ...] = (), **training: Any,
) -> Blueprint:  # fmt: skip
    """Return the blueprint of a run that exists nowhere else; stages that are `sparse` have no dense parameters."""
    nowhere = ServerSpec(name="coordinator", address="", local_address="")
    return Blueprint(
        run=Run(
            model=RunModel(name="none"),
            training=RunTraining(**training),
            optimizer=RunOptimizer(clip_norm=1.0 if clip else None),
            workers=[RunWorker(count=workers)]
            + [RunWorker(name=f"stage-{n}", count=count, stage=n) for n, count in enumerate(stages, 1)],
            stages=[RunStage(first_layer=n, last_layer=n) for n in range(len(stages) + 1)] if stages else [],
            checkpoint=RunSaving(every_steps=every_steps),
            faults=RunFaults(patience_s=10.0, redo_log=redo_log),
            compression=RunCompression(bits=bits),
        ),
        tables=(), dense=(), samples=samples, batch=batch, optimizer={}, row_optimizer={},
        coordinator=nowhere, lanes=None, stages=_stage_specs(stages, sparse),
        servers=tuple(ServerSpec(name=f"server-{n}", address="", local_address="") for n in range(servers)),
    )  # fmt: skip


def _stage_specs(stages: tuple[int, ...], sparse: tuple[int, ...]) -> tuple[StageWorkers, ...]:
    """Return the stages, with so many workers in each after the first."""
    if not stages:
        return ()
    later = (
        StageWorkers(
            has_dense=stage not in sparse,
            workers=tuple(
                ServerSpec(name=f"stage-{stage}-{n}" if count > 1 else f"stage-{stage}", address="", local_address="")
                for n in range(count)
            ),
        )
        for stage, count in enumerate(stages, 1)
    )
    return (StageWorkers(has_dense=0 not in sparse), *later)
