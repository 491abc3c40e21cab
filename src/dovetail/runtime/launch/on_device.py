"""A run in one process whose tables have their hot rows in the memory of a GPU, over host memory and disk.

Layers, dense optimizer and rows are on the device. Batches are read ahead, and their rows brought there while earlier
ones are trained on. The folder and its checkpoints are those of any run: a run can go on with servers, and back.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

import msgspec
import torch
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.source import Source
from dovetail.data.streams import stream_number
from dovetail.embedding import Checkpoint, Table
from dovetail.embedding.device.on_device import OnDevice
from dovetail.models.schedules import make_schedule
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import Manifest, checksums_in, load_dense, save_dense, table_folder
from dovetail.runtime.dense.groups import optimizer_of
from dovetail.runtime.dense.on_device import from_device, scale_to_norm, step_on_device, to_device
from dovetail.runtime.due import Due
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import TableSummary, rows_of
from dovetail.runtime.launch.alone_figures import AloneFigures
from dovetail.runtime.launch.batches_ahead import BatchesAhead
from dovetail.runtime.launch.device_steps import DeviceSteps, FreeSteps, KnownSteps
from dovetail.runtime.launch.devices import check_device
from dovetail.runtime.launch.late_losses import LateLosses
from dovetail.runtime.launch.prepare import load_source
from dovetail.runtime.launch.step_graph import recorder_for
from dovetail.runtime.launch.table_bytes import bytes_by_table
from dovetail.runtime.messages import Report
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.fixed import read_fixed, read_statistics
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.samples import Samples
from dovetail.runtime.server.tables import load_table
from dovetail.runtime.worker.compiled import can_compile
from dovetail.runtime.worker.device_rows import DeviceRows, doors_of
from dovetail.runtime.worker.known_look_ups import KnownLookUp, known_look_ups
from dovetail.runtime.worker.model import ServedModel
from dovetail.spec.run import Run, RunWorker

OnReport = Callable[[Report], None]


def on_one_device(run: Run, *, other_hosts: bool = False) -> Run:
    """Return the run as one process does it; refuse what that cannot, such as workers on other hosts."""
    if other_hosts:
        raise TrainingError(
            "the rows lie on a device of this process, and --on starts workers on other hosts",
            hint='leave --on away, or set table.place = "servers"',
        )
    if run.stages:
        raise TrainingError(
            "the rows lie on a device, and the run is cut into stages",
            hint='leave [[stage]] away, or set table.place = "servers"',
        )
    check_device(run.table.device, f'table.device = "{run.table.device}"')
    worker = RunWorker(device=run.table.device, precision=run.workers[0].precision)
    training = msgspec.structs.replace(run.training, mode="sync", dense="ps")
    servers = msgspec.structs.replace(run.servers, count=1)
    table = msgspec.structs.replace(run.table, place="device")
    return msgspec.structs.replace(run, workers=(worker,), servers=servers, table=table, training=training)


class DeviceRun:
    """A run of one process; the caller's thread trains."""

    def __init__(self, folder: Path, *, model: nn.Module | None = None, source: Source | None = None) -> None:
        """Take up the newest checkpoint of a folder that `prepare` made."""
        self.folder = folder
        self._blueprint = Blueprint.read(folder)
        run = self._blueprint.run
        newest = checkpoints.newest(folder, fits=Fingerprint.of(self._blueprint))
        self._manifest = Manifest.read(newest).in_epochs_of(self._blueprint.samples)
        data = load_source(run, source)
        self._samples = Samples(self._blueprint, data)
        built = build_model(run, data.schema, model)
        read_fixed(built, folder, self._blueprint.fixed)
        read_statistics(built, newest, self._manifest)
        budgets = bytes_by_table(run.table, [table.name for table in self._blueprint.tables])
        self._tables = [
            load_table(
                *(self._blueprint, self._manifest, newest, position),
                cold=rows_of(folder, self._blueprint.servers[0].name) / f"table-{position}",
                device=run.table.device,
                device_bytes=held_bytes,
            )
            for position, held_bytes in enumerate(budgets)
        ]
        doors, look_ups = doors_of(self._tables), known_look_ups(built)
        rows = DeviceRows(doors)
        device = torch.device(run.table.device)
        self._model = ServedModel(
            built.train(),
            rows,
            device,
            schema=data.schema,
            precision=run.workers[0].precision,
            compiles=run.training.compile and can_compile(device, warnings.warn),
        )
        if self._model.loss_scale is not None:
            raise TrainingError(
                "the run computes in float16, and its rows lie on a device, where losses are not scaled",
                hint='take bfloat16, or set table.place = "servers"',
            )
        self._optimizer = optimizer_of(self._blueprint)
        values, state = load_dense(newest, self._manifest)
        self._model.values.copy_(torch.from_numpy(values))
        self._state = to_device(state or self._optimizer.first_state(len(values)), device)
        self._dense_steps = self._manifest.dense_steps
        self._schedule = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
        self.step = self._manifest.step
        """Steps that were begun."""
        self._losses = LateLosses(device)
        self._figures = AloneFigures(
            *(folder, self._blueprint, self._schedule), step=self._manifest.step, position=self._manifest.position
        )
        self._steps = self._steps_by(rows, doors, look_ups)
        self._ahead = BatchesAhead(
            self._blueprint, self._samples, self._steps, first=self._manifest.position, depth=run.table.look_ahead
        )

    def _steps_by(
        self, rows: DeviceRows, doors: Sequence[OnDevice], look_ups: Sequence[KnownLookUp] | str
    ) -> DeviceSteps:
        """Return how steps are computed; on CUDA, where they are not captured though they might be, say why."""
        model, wanted = self._model, self._blueprint.run.table.graph
        record = recorder_for(model.device) if wanted else None
        if model.compiles:
            look_ups = "training.compile is on"
        if not isinstance(look_ups, str):
            return KnownSteps(model, doors, look_ups, record=record, tell=self._figures.note)
        if record is not None:
            self._figures.note(f"steps run operation by operation, not as a CUDA graph: {look_ups}")
        return FreeSteps(model, rows)

    def __enter__(self) -> DeviceRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, on_report: OnReport | None = None, *, stop: Callable[[], bool] = lambda: False) -> Report:
        """Train to the end, or until `stop` says so, telling now and then how it goes; return the last report."""
        device = self._model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self._draw_from(self.step)
            return self._train(on_report, stop)

    def _draw_from(self, step: int) -> None:
        """Have layers that draw numbers, such as `nn.Dropout`, draw as a run does that goes on from here."""
        torch.manual_seed(stream_number(self._blueprint.run.training.seed, f"device/{step}") >> 1)

    def _train(self, on_report: OnReport | None, stop: Callable[[], bool]) -> Report:
        """Train."""
        run, step, position = self._blueprint.run, self.step, self._manifest.position
        saved_step, newest = -1, self.folder
        due = Due(run.checkpoint, run.validation, self._blueprint.samples)
        due.begun(step, position, time.monotonic())
        while (found := self._ahead.take()) is not None and not stop():
            batch, position = found
            waited_s = self._steps.waited_s
            self._step(step, batch)
            self.step = step = step + 1
            self._figures.add_step(step, position, wait_s=self._steps.waited_s - waited_s, losses=self._losses.take())
            if due.is_due(step, position, time.monotonic()):
                newest, saved_step = self._save(step, position), step
                due.begun(step, position, time.monotonic())
            if on_report is not None and self._figures.is_due():
                on_report(self._figures.report())
        if saved_step != step:
            newest = self._save(step, position)
        self._figures.finish(newest, tuple(_summary_of(table) for table in self._tables))
        report = self._figures.report("done")
        if on_report is not None:
            on_report(report)
        return report

    def _step(self, step: int, batch: Batch) -> None:
        """Train on one batch."""
        model, settings = self._model, self._blueprint.run
        scale = 1.0 / max(1, batch.num_samples) if settings.training.reduction == "mean" else 1.0
        factor = self._schedule(step)
        loss, scores = self._steps.compute(batch, scale=scale, factor=factor)
        if len(model.values):
            self._step_dense(model.gradients, scale=scale, factor=factor)
        self._losses.add(loss, samples=batch.num_samples, step=step)
        self._figures.add_scores(scores, batch.labels)

    @torch.no_grad()
    def _step_dense(self, gradients: Tensor, *, scale: float, factor: float) -> None:
        """Step the dense parameters, and have their gradients begin anew."""
        settings = self._blueprint.run.optimizer
        if settings.clip_norm is not None:
            scale_to_norm(gradients, scale, settings.clip_norm)
            scale = 1.0
        self._dense_steps += 1
        step_on_device(
            *(self._optimizer, self._model.values, gradients, self._state),
            step_number=self._dense_steps,
            scale=scale,
            factor=factor,
            clip_value=settings.clip_value,
        )
        gradients.zero_()

    def _save(self, step: int, position: int) -> Path:
        """Write a checkpoint, as any run does."""
        self._losses.settle()
        self._figures.add_losses(self._losses.take())
        partial = checkpoints.begin(self.folder, step)
        checkpoints.write_statistics(statistics_vector(self._model.graph), partial)
        save_dense(partial, 0, 0, self._model.values.cpu().numpy(), from_device(self._state))
        written: list[Future[Checkpoint]] = [
            table.save_beside(partial / table_folder(number, 0)) for number, table in enumerate(self._tables)
        ]
        for future in written:
            future.result()
        manifest = Manifest(
            step=step,
            position=position,
            dense_steps=self._dense_steps,
            num_servers=1,
            samples=self._blueprint.samples,
            fingerprint=Fingerprint.of(self._blueprint),
            files=checksums_in(partial, only="**/*"),
        )
        newest = checkpoints.publish(partial, manifest)
        checkpoints.drop_old(self.folder, newest, self._blueprint.run.checkpoint.keep)
        self._figures.kept(step)
        self._draw_from(step)
        return newest

    def close(self) -> None:
        """Give back memory and files."""
        self._ahead.close()
        self._figures.close()
        for table in self._tables:
            table.close()
        remove_private_folder(self._blueprint.private_folder)


def _summary_of(table: Table) -> TableSummary:
    """Return where a table's rows are, and what moved."""
    stats, on_device = table.stats(), table.on_device
    if on_device is None:
        raise TrainingError("a table is not on the device", hint="a bug: report it")
    moved = on_device.moved()
    return TableSummary(
        device_rows=stats.device_rows,
        host_rows=stats.host_rows,
        disk_rows=stats.disk_rows,
        hit_ratio=round(moved.hit_ratio, 4),
        lifted=moved.num_lifted,
        lowered=moved.num_lowered,
    )
