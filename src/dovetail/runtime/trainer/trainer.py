"""The loop that trains, wherever rows lie: it reads ahead, computes, steps, reports, and keeps checkpoints.

One process, or each of a group. The folder and its checkpoints are those of any run: a run can go on with servers,
and back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch import nn

from dovetail.data.batch import Batch
from dovetail.data.files.source import FileSource
from dovetail.data.source import Source
from dovetail.data.streams import stream_number
from dovetail.embedding import Checkpoint
from dovetail.models.schedules import make_schedule
from dovetail.privacy.keys import SAMPLING_KEY, read_secret
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import CheckpointSchedule, RunManifest, checksums_in, table_folder
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import KEYS
from dovetail.runtime.messages import Report
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.frozen import read_fixed, read_statistics
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.noise import dense_noise, noise_key
from dovetail.runtime.prepare.run_folder import load_source
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.samples import Samples, tell_of_bad_rows
from dovetail.runtime.spending import SpendingRecord, privacy_summary
from dovetail.runtime.trainer.batches_ahead import BatchesAhead
from dovetail.runtime.trainer.dense_step import DenseStep
from dovetail.runtime.trainer.figures import TrainerFigures
from dovetail.runtime.trainer.group import Alone, Group
from dovetail.runtime.trainer.late_losses import LateLosses
from dovetail.runtime.trainer.on_device import rows_on_device
from dovetail.runtime.trainer.on_host import rows_on_host
from dovetail.runtime.trainer.one_process import device_of, has_device_tier, threads_of
from dovetail.runtime.trainer.steps import Beginning, MakeStrategy
from dovetail.runtime.worker.rows.prefetch import rows_of_ids

OnReport = Callable[[Report], None]
SPREAD = 0x9E3779B97F4A7C15
"""Between the seeds of two steps; odd, so that no two of them are alike."""
MOST_NARROW = 1 << 31
"""Ids below it are kept as four bytes each."""
MakeFigures = Callable[..., Any]
"""Makes what a run's figures are told to, as `TrainerFigures` is made."""


class Trainer:
    """A run of one process, or one of a group; the caller's thread trains."""

    def __init__(
        self,
        folder: Path,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        place: MakeStrategy | None = None,
        group: Group | None = None,
        device: str | None = None,
        figures: MakeFigures = TrainerFigures,
        reads_ahead: bool = True,
    ) -> None:
        """Take up the newest checkpoint of a folder that `prepare` made; `place` is where rows lie, else the run says.

        One of a `group` has its own `device` and `figures`, and leaves the run's private folder to its launcher.

        Without `reads_ahead` nothing happens in other threads: a debugger stops where it should.
        """
        self.folder = folder
        self._products = torch.get_float32_matmul_precision()
        """How others in this process multiply: what the run's `precision` changes is changed back."""
        self._blueprint = blueprint = Blueprint.read(folder)
        self._group, self._is_alone = group or Alone(), group is None
        run = blueprint.run
        newest = checkpoints.newest(folder, fits=Fingerprint.of(blueprint))
        self._manifest = RunManifest.read(newest).in_epochs_of(blueprint.samples)
        data = load_source(run, source)
        built = build_model(run, data.schema, copy.deepcopy(model))  # the user's own stays as it is
        rows = rows_of_ids(built)
        if isinstance(data, FileSource) and rows is not None and rows <= MOST_NARROW:
            data = data.folded(rows)  # the same keys, in half of the bytes
        read_fixed(built, folder, blueprint.fixed)
        read_statistics(built, newest, self._manifest)
        self._figures = figures(folder, blueprint, step=self._manifest.step, position=self._manifest.position)
        begin = Beginning(
            folder,
            blueprint,
            newest,
            self._manifest,
            built.train(),
            data.schema,
            torch.device(device or device_of(run)),
            self._figures.note,
        )
        self._data = data
        self._strategy = (place or (rows_on_device if has_device_tier(run) else rows_on_host))(begin)
        self._model, self._steps = self._strategy.model, self._strategy.steps
        values, gradients = self._model.values, self._model.gradients
        noise = dense_noise(blueprint, noise_key(folder, blueprint))
        self._dense = DenseStep(
            blueprint, values, gradients, newest, self._manifest, quiet=self._strategy.quiet, noise=noise
        )
        self._schedule = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())
        self.step = self._manifest.step
        """Steps that were begun."""
        rank = self._group.rank
        self._draws = stream_number(run.training.seed, f"steps/{rank}" if rank else "steps")
        self._losses = LateLosses(self._model.device)
        self._private = blueprint.private
        self._record = None if self._private is None else SpendingRecord(folder, self._private)
        sampling_key = b"" if self._private is None else read_secret(folder / KEYS, SAMPLING_KEY)
        self._ahead = BatchesAhead(
            blueprint,
            Samples(blueprint, data, sampling_key=sampling_key),
            self._steps,
            self._group,
            first=self._manifest.position,
            depth=run.table.look_ahead if reads_ahead else 0,
        )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, on_report: OnReport | None = None, *, stop: Callable[[], bool] = lambda: False) -> Report:
        """Train to the end, or until `stop` says so, telling now and then how it goes; return the last report."""
        device, threads = self._model.device, torch.get_num_threads()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.set_num_threads(threads_of(self._blueprint.run, self._blueprint.flops))
            try:
                self._draw_from(self.step)
                return self._train(on_report or (lambda _: None), stop)
            finally:
                torch.set_num_threads(threads)

    def _draw_from(self, step: int) -> None:
        """Have layers that draw numbers, such as `nn.Dropout`, draw as a run does that goes on from here."""
        seed = (self._draws + step * SPREAD & (1 << 64) - 1) >> 1
        if self._model.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _train(self, on_report: OnReport, stop: Callable[[], bool]) -> Report:
        """Train."""
        run, step, position = self._blueprint.run, self.step, self._manifest.position
        draws_each_step = self._model.device.type == "cpu"
        saved_step, newest = -1, self.folder
        due = CheckpointSchedule(run.checkpoint, run.validation, self._blueprint.samples)
        stops, now_s = self._group.agree(stop())
        due.begun(step, position, now_s)
        on_report(self._figures.report())
        self._figures.paused()
        while not stops and not self._is_spent(step) and (found := self._ahead.take()) is not None:
            batch, position = found
            if draws_each_step:
                self._draw_from(step)
            waited_s = self._steps.waited_s
            self._step(step, batch)
            self.step = step = step + 1
            wait_s, data_s = self._steps.waited_s - waited_s, self._ahead.take_waited_s()
            self._figures.add_step(
                step,
                position,
                wait_s=wait_s + data_s,
                data_s=data_s,
                losses=self._losses.take(),
                read_s=self._ahead.take_read_s(),
            )
            stops, now_s = self._group.agree(stop())
            is_kept = due.is_due(step, position, now_s)
            if is_kept:
                newest, saved_step = self._save(step, position), step
                due.begun(step, position, now_s)
            if is_kept or self._figures.is_due():
                on_report(self._figures.report())
            if is_kept:
                self._figures.paused()
        if saved_step != step:
            on_report(self._figures.report())
            newest = self._save(step, position)
        tell_of_bad_rows(self._data, self._figures.note)
        summary_of, privacy = self._strategy.summary_of, None
        if self._record is not None:
            self._record.end(step)
            privacy = privacy_summary(self._blueprint, self._record.spending, step)
        self._figures.finish(newest, tuple(summary_of(table) for table in self._strategy.tables), privacy)
        report: Report = self._figures.report("done")
        on_report(report)
        return report

    def _is_spent(self, step: int) -> bool:
        """Say whether a privacy budget does not last for a step; where it does, the step is noted as spent."""
        if self._private is None or self._record is None:
            return False
        if step >= self._private.until_step:
            return True
        self._record.begin(step)
        return False

    def _step(self, step: int, batch: Batch) -> None:
        """Train on one batch."""
        samples = self._group.samples_of(batch) if self._private is None else self._private.batch
        scale = 1.0 / max(1, samples) if self._blueprint.run.training.reduction == "mean" else 1.0
        factor = self._schedule(step)
        loss, scores = self._steps.compute(batch, step=step + 1, scale=scale, factor=factor)
        self._group.sum_dense(self._dense.gradients)
        self._dense.take(step=step + 1, scale=scale, factor=factor)
        self._losses.add(loss, samples=batch.num_samples if self._private is None else samples, step=step)
        self._figures.add_scores(scores, batch.labels)

    def _save(self, step: int, position: int) -> Path:
        """Write a checkpoint, as any run does: each of the group its rows, the first of them all the rest."""
        self._losses.settle()
        self._figures.add_losses(self._losses.take())
        group, is_first = self._group, self._group.rank == 0
        partial = checkpoints.begin(self.folder, step) if is_first else checkpoints.partial_of(self.folder, step)
        group.gather(b"")  # the folder is there
        written: list[Future[Checkpoint]] = [
            table.save_beside(partial / table_folder(number, group.rank))
            for number, table in enumerate(self._strategy.tables)
        ]
        if is_first:
            checkpoints.write_statistics(statistics_vector(self._model.graph), partial)
            self._dense.save(partial)
        for future in written:
            group.wait_for(future)
        files = self._files_of_all(partial)
        newest = checkpoints.folder_of(self.folder, step)
        if is_first:
            manifest = RunManifest(
                step=step,
                position=position,
                dense_steps=self._dense.steps,
                num_servers=group.size,
                samples=self._blueprint.samples,
                fingerprint=Fingerprint.of(self._blueprint),
                files=files,
                spending=None if self._record is None else self._record.at(step),
            )
            newest = checkpoints.publish(partial, manifest)
            checkpoints.drop_old(self.folder, newest, self._blueprint.run.checkpoint.keep)
        group.gather(b"")  # it is kept
        self._figures.kept(step)
        self._draw_from(step)
        return newest

    def _files_of_all(self, partial: Path) -> dict[str, str]:
        """Return the checksums of a checkpoint's files, each found by who wrote it.

        The copies of the dense parameters had the same sums and the same steps: where they differ, the run ends.
        """
        group, own_rows = self._group, f"table-*/{table_folder(0, self._group.rank).partition('/')[2]}/**/*"
        with ThreadPoolExecutor(1) as hasher:
            mine = group.wait_for(hasher.submit(checksums_in, partial, only=own_rows))
            if group.rank == 0:
                mine |= checksums_in(partial, only="*")
            dense = group.wait_for(hasher.submit(self._dense.digest)) if group.size > 1 else ""
        payloads = group.gather(msgspec.json.encode((mine, dense)))
        parts = [msgspec.json.decode(each, type=tuple[dict[str, str], str]) for each in payloads]
        if differs := [rank for rank, (_, digest) in enumerate(parts) if digest != parts[0][1]]:
            raise TrainingError(
                f"at step {self.step} the dense parameters of worker {differs[0]} are not those of the first",
                hint=f"a bug: report it; go on from the checkpoint before: dovetail train --resume {self.folder}",
            )
        return {name: checksum for files, _ in parts for name, checksum in files.items()}

    def close(self) -> None:
        """Give back memory and files."""
        torch.set_float32_matmul_precision(self._products)
        self._ahead.close()
        self._figures.close()
        for table in self._strategy.tables:
            table.close()
        if self._is_alone:
            remove_private_folder(self._blueprint.private_folder)
