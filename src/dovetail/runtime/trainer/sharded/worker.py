"""One worker of a sharded run, in a process of its own: the loop of all trainers, with its part of rows and batches."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.clocks import STUCK, UNKNOWN
from dovetail.runtime.folder import log_of
from dovetail.runtime.private_folder import hold
from dovetail.runtime.trainer.figures import TrainerFigures
from dovetail.runtime.trainer.sharded.figures import FirstWorkerFigures, OtherWorkerFigures
from dovetail.runtime.trainer.sharded.line import GroupLost, LauncherLine, Told, WorkerFailed, socket_of, store_of
from dovetail.runtime.trainer.sharded.over_workers import rows_over_workers
from dovetail.runtime.trainer.sharded.process_group import GroupBroken, ProcessGroup
from dovetail.runtime.trainer.sharded.worker_group import WorkerGroup
from dovetail.runtime.trainer.trainer import Trainer

COMPILES_S = 30.0
SWITCH_S = 0.0005
"""How often threads take turns: those that pass keys on wait for little else."""


def train_part(folder: Path, name: str, model: nn.Module | None, source: Source | None, generation: int) -> None:
    """Train a part of every batch until the run is over; what goes wrong is the launcher's to know."""
    blueprint = Blueprint.read(folder)
    hold(blueprint.private_folder)
    worker = ShardedWorker(folder, blueprint, name, generation)
    try:
        worker.train(model, source)
    except GroupBroken as problem:
        worker.line.tell(GroupLost(name=name, error=str(problem)))
        raise
    except DovetailError as problem:
        worker.line.tell(WorkerFailed(name=name, error=str(problem), hint=problem.hint))
        raise
    except Exception as problem:
        with suppress(OSError):  # a full disk
            traceback.print_exception(problem)
        hint = f"its traceback is in {log_of(folder, name)}; `dovetail train --in-process` stops where the model fails"
        worker.line.tell(WorkerFailed(name=name, error=f"{type(problem).__name__}: {problem}", hint=hint))
        raise
    finally:
        worker.line.close()


class ShardedWorker:
    """A worker's place in one generation of a run."""

    def __init__(self, folder: Path, blueprint: Blueprint, name: str, generation: int) -> None:
        """Show signs of life from now on."""
        sys.setswitchinterval(SWITCH_S)
        self._folder, self._blueprint = folder, blueprint
        self._trainer: Trainer | None = None
        workers = blueprint.run.each_worker()
        self._names = [each for each, _ in workers]
        self._rank, self._settings = self._names.index(name), dict(workers)[name]
        private = blueprint.private_folder
        self.line = LauncherLine(socket_of(private, generation), name, self._step)
        self._store = store_of(private, generation)
        torch.set_num_threads(self._settings.threads)

    def _step(self) -> int:
        return -1 if self._trainer is None else self._trainer.step

    def train(self, model: nn.Module | None, source: Source | None) -> None:
        """Meet the others, take up the newest checkpoint, and train to the end."""
        rows = self._group("rows")
        group = WorkerGroup(rows, self._group("control"), self.line.pulse)
        place = partial(
            rows_over_workers,
            group=group,
            rows=rows,
            ahead=self._group("ahead"),
            settings=self._settings,
            pulse=self.line.pulse,
        )
        self.line.pulse.rest()  # rows may take long to load
        self._trainer = Trainer(
            self._folder,
            model=model,
            source=source,
            place=place,
            group=group,
            device=self._settings.device,
            figures=partial(self._figures, group),
        )
        self.line.pulse.longest_s = self._longest_s()
        with self._trainer:
            tells = None if self._rank else lambda report: self.line.tell(Told(report=report))
            self._trainer.wait(tells, stop=self.line.should_stop)

    def _longest_s(self) -> float:
        """Return how long a pause is taken to be before any is known, kernels that compile among them."""
        run = self._blueprint.run
        return COMPILES_S if run.training.compile else UNKNOWN * run.faults.patience_s / STUCK

    def _group(self, name: str) -> ProcessGroup:
        return ProcessGroup(self._store, name, self._rank, len(self._names), pulse=self.line.pulse)

    def _figures(
        self, group: WorkerGroup, folder: Path, blueprint: Blueprint, *, step: int, position: int
    ) -> TrainerFigures | OtherWorkerFigures:
        if self._rank:
            return OtherWorkerFigures(step=step, position=position, group=group)
        return FirstWorkerFigures(folder, blueprint, step=step, position=position, group=group, names=self._names)
