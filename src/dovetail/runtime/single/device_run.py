"""A run in one process whose tables have their hot rows in the memory of a GPU, over host memory and disk.

Layers, dense optimizer and rows are on the device. Batches are read ahead, and their rows brought there while earlier
ones are trained on. The folder and its checkpoints are those of any run: a run can go on with servers, and back.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from dovetail.data.batch import Batch
from dovetail.data.source import Source
from dovetail.data.streams import stream_number
from dovetail.embedding import Checkpoint, Table
from dovetail.embedding.tiers.device.captured_step import recorder_for
from dovetail.embedding.tiers.device.table import DeviceTable
from dovetail.models.schedules import make_schedule
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import (
    CheckpointSchedule,
    RunManifest,
    checksums_in,
    load_dense,
    save_dense,
    table_folder,
)
from dovetail.runtime.dense.optimizer import from_device, optimizer_of, scale_to_norm, to_device
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import TableSummary, rows_of
from dovetail.runtime.messages import Report
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.frozen import read_fixed, read_statistics
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.prepare.devices import check_device
from dovetail.runtime.prepare.run_folder import load_source
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.samples import Samples
from dovetail.runtime.server.shard import load_table
from dovetail.runtime.single.device_rows import DeviceRows, doors_of
from dovetail.runtime.single.device_steps import DeviceSteps, FreeSteps, KnownSteps
from dovetail.runtime.single.figures import SingleProcessFigures
from dovetail.runtime.worker.compute.compiled import can_compile
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.rows.prefetch import PrefetchableLookUp, prefetchable_look_ups
from dovetail.spec.run import Run, RunWorker
from dovetail.spec.run_sections import RunTable

MOST_LATE = 4
"""Steps that may be under way while no loss of theirs is known."""


class LateLosses:
    """The losses of steps under way; one that is no number is an error, a few steps late."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._waiting: deque[tuple[Tensor, Any, int, int]] = deque()
        self._known: list[tuple[int, float]] = []

    def take(self) -> list[tuple[int, float]]:
        """Return (samples, summed loss) of the steps whose losses have become known since this was last asked."""
        known, self._known = self._known, []
        return known

    def add(self, loss: Tensor, *, samples: int, step: int) -> None:
        """Take in the summed loss of a step that was begun."""
        here = torch.empty((), dtype=torch.float32, pin_memory=self._is_cuda)
        here.copy_(loss.detach(), non_blocking=self._is_cuda)
        arrived = None
        if self._is_cuda:
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._waiting.append((here, arrived, samples, step))
        while self._waiting and (len(self._waiting) > MOST_LATE or arrived is None or self._waiting[0][1].query()):
            self._look()

    def settle(self) -> None:
        """Look at all of them."""
        while self._waiting:
            self._look()

    def _look(self) -> None:
        here, arrived, samples, step = self._waiting.popleft()
        if arrived is not None:
            arrived.synchronize()
        total = float(here)
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {total} at step {step}",
                hint="lower the learning rate, clip gradients, or look for broken samples",
            )
        self._known.append((samples, total))


THREAD_NAME = "dovetail-batches"


class BatchesAhead:
    """Batches in their order: so many are announced, and as many more are being read."""

    def __init__(self, blueprint: Blueprint, samples: Samples, steps: DeviceSteps, *, first: int, depth: int) -> None:
        """Begin at a position of the run; nothing is read before the first batch is taken."""
        self._blueprint, self._samples, self._steps, self._depth = blueprint, samples, steps, depth
        self._read_to = first
        self._reading: deque[tuple[Future[tuple[Batch, Any]], int]] = deque()
        self._announced: deque[tuple[Batch, int]] = deque()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)

    def take(self) -> tuple[Batch, int] | None:
        """Return the next batch and the position after it; None at the end. What reading it raised is raised here."""
        self._read_on()
        while self._reading and len(self._announced) <= self._depth:
            future, end = self._reading[0]
            if self._announced and not future.done():
                break
            batch, prepared = future.result()
            self._reading.popleft()
            self._steps.announce(prepared)
            self._announced.append((batch, end))
            self._read_on()
        return self._announced.popleft() if self._announced else None

    def _read_on(self) -> None:
        """Have batches read until enough are on their way."""
        samples, epochs = self._blueprint.samples, self._blueprint.run.training.epochs
        while len(self._reading) <= self._depth and self._read_to < samples * epochs:
            epoch, first = divmod(self._read_to, samples)
            last = min(samples, first + self._blueprint.batch)
            self._read_to += last - first
            self._reading.append((self._reader.submit(self._read, epoch, first, last), self._read_to))

    def _read(self, epoch: int, first: int, last: int) -> tuple[Batch, Any]:
        batch = self._samples.read(epoch, first, last)
        return batch, self._steps.prepare(batch)

    def close(self) -> None:
        """Stop reading."""
        self._reader.shutdown(wait=True, cancel_futures=True)


def bytes_by_table(settings: RunTable, names: Sequence[str]) -> list[int]:
    """Return the memory for rows of each table: what its layer is given by name, else an even share of the rest."""
    plain = [name.removeprefix("layers.").replace(".", "_") for name in names]
    given = {name.replace(".", "_"): rows_bytes for name, rows_bytes in settings.layer_bytes.items()}
    if unknown := [name for name in settings.layer_bytes if name.replace(".", "_") not in plain]:
        raise TrainingError(
            f"table.layer_bytes names `{unknown[0]}`, which is no layer with a table",
            hint=f"such layers are {', '.join(plain) or 'none'}",
        )
    others = [name for name in plain if name not in given]
    rest = settings.device_bytes - sum(given.values())
    if rest < len(others):
        raise TrainingError(
            f"table.layer_bytes gives {sum(given.values())} bytes, and table.device_bytes = {settings.device_bytes} "
            f"leaves too little for {len(others)} other tables",
            hint="raise table.device_bytes, or name fewer layers",
        )
    return [given[name] if name in given else rest // len(others) for name in plain]


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
        self._manifest = RunManifest.read(newest).in_epochs_of(self._blueprint.samples)
        data = load_source(run, source)
        self._samples = Samples(self._blueprint, data)
        built = build_model(run, data.schema, model)
        read_fixed(built, folder, self._blueprint.fixed)
        read_statistics(built, newest, self._manifest)
        budgets = bytes_by_table(run.table, [table.name for table in self._blueprint.tables])
        self._tables = [
            load_table(
                self._blueprint,
                self._manifest,
                newest,
                position,
                cold=rows_of(folder, self._blueprint.servers[0].name) / f"table-{position}",
                device=run.table.device,
                device_bytes=held_bytes,
            )
            for position, held_bytes in enumerate(budgets)
        ]
        doors, look_ups = doors_of(self._tables), prefetchable_look_ups(built)
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
        self._figures = SingleProcessFigures(
            folder, self._blueprint, step=self._manifest.step, position=self._manifest.position
        )
        self._steps = self._steps_by(rows, doors, look_ups)
        self._ahead = BatchesAhead(
            self._blueprint, self._samples, self._steps, first=self._manifest.position, depth=run.table.look_ahead
        )

    def _steps_by(
        self, rows: DeviceRows, doors: Sequence[DeviceTable], look_ups: Sequence[PrefetchableLookUp] | str
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
        due = CheckpointSchedule(run.checkpoint, run.validation, self._blueprint.samples)
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
        self._optimizer.step_on_device(
            self._model.values,
            gradients,
            self._state,
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
        manifest = RunManifest(
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
        lifted=moved.num_promoted,
        lowered=moved.num_demoted,
    )
