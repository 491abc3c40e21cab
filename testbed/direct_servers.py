"""A run with servers in one process and one thread: their code, called directly. A reference, not for speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from dovetail.data.source import Source
from dovetail.models.schedules import make_schedule
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest, checksums_in
from dovetail.runtime.dense.optimizer import clipped_scale
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import rows_of
from dovetail.runtime.messages import Forgotten, Pull, Push, Pushed
from dovetail.runtime.model.build import build_model
from dovetail.runtime.model.frozen import read_fixed, read_statistics
from dovetail.runtime.model.parameters import statistics_vector
from dovetail.runtime.prepare.run_folder import load_source
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.runtime.samples import Samples
from dovetail.runtime.server.answers import AnswerWire
from dovetail.runtime.server.requests import gradients_in
from dovetail.runtime.server.shard import Shard
from dovetail.runtime.worker.compute.computer import Computed, Computer
from dovetail.runtime.worker.compute.served_model import ServedModel
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.links.servers import ServerConnections
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.transport import Envelope
from testbed.direct_caller import DirectCaller

OnStep = Callable[[int, float], None]


class DirectServers:
    """All servers of a run inside this process; the caller's thread is its only worker."""

    def __init__(
        self,
        folder: Path,
        *,
        model: nn.Module | None = None,
        source: Source | None = None,
        wire: LinkCompression | None = None,
    ) -> None:
        """Take up the newest checkpoint of a folder that `prepare` made; a `wire` says how numbers travel."""
        self.folder = folder
        self._blueprint = Blueprint.read(folder)
        run = self._blueprint.run
        if run.training.dense == "ring":
            raise TrainingError("one process has no ring", hint='set training.dense = "ps" to look for faults')
        if run.sites:
            raise TrainingError(
                "one process exchanges with no other sites", hint="leave [[site]] away to look for faults"
            )
        newest = checkpoints.newest(folder, fits=Fingerprint.of(self._blueprint))
        self._manifest = RunManifest.read(newest).in_epochs_of(self._blueprint.samples)
        self._shards = [
            Shard(self._blueprint, number, rows_of(folder, spec.name))
            for number, spec in enumerate(self._blueprint.servers)
        ]
        for shard in self._shards:
            shard.load(newest)
        self._wire = wire or LinkCompression(self._blueprint)
        self._lines = ServerConnections(
            self._blueprint,
            [DirectCaller(answer_as(shard), peer=f"server-{number}") for number, shard in enumerate(self._shards)],
            self._wire,
        )
        data = load_source(run, source)
        self._samples = Samples(self._blueprint, data)
        device = torch.device(run.workers[0].device)
        rows = BatchRows(self._blueprint.num_servers, device)
        built = build_model(run, data.schema, model)
        read_fixed(built, folder, self._blueprint.fixed)
        read_statistics(built, newest, self._manifest)
        self._model = ServedModel(built.train(), rows, device, schema=data.schema)
        self._computer = Computer(self._model)
        self._schedule = make_schedule(run.optimizer.schedule.name, **run.optimizer.schedule.settings())

    def run(self, on_step: OnStep | None = None) -> Path:
        """Train to the end, one global batch a step; return the last checkpoint's folder."""
        step, position = self._manifest.step, self._manifest.position
        samples, run = self._blueprint.samples, self._blueprint.run
        while position < samples * run.training.epochs:
            epoch, first = divmod(position, samples)
            last = min(samples, first + self._blueprint.batch)
            loss = self._step(step, epoch, first, last)
            step, position = step + 1, position + last - first
            if on_step is not None:
                on_step(step, loss)
        return self._save(step, position)

    def _step(self, step: int, epoch: int, first: int, last: int) -> float:
        """Train on one global batch; return its mean loss."""
        batch = self._samples.read(epoch, first, last)
        look_ups = [look_up(table, keys, self._blueprint.num_servers) for table, keys in self._model.asked(batch)]
        answer = self._lines.pull(0, step, look_ups, dense=True, wanted=_always, keep=True)
        if answer.dense is not None:
            self._model.values.copy_(torch.from_numpy(answer.dense))
        self._model.gradients.zero_()
        computed = self._computer.compute(
            batch,
            list(zip(answer.look_ups, answer.rows, strict=True)),
            lambda wanted: self._lines.pull(0, step, [wanted], dense=False, wanted=_always).rows[0],
            where=f"at step {step}",
        )
        self._push(step, batch.num_samples, computed)
        return computed.loss / max(1, batch.num_samples)

    def _push(self, step: int, samples: int, computed: Computed) -> None:
        """Hand the gradients to the servers and have them applied."""
        dense = self._model.gradients.cpu().numpy() if len(self._model.gradients) else None
        message = Push(
            generation=0,
            step=step,
            task=0,
            worker="here",
            part=0,
            tables=tuple(wanted.table for wanted, _ in computed.rows),
            dense=dense is not None,
            last=True,
            positions=samples,
            samples=samples,
            loss=computed.loss,
        )
        self._lines.push(message, computed.rows, dense, _always)
        settings = self._blueprint.run
        scale = 1.0 / max(1, samples) if settings.training.reduction == "mean" else 1.0
        dense_scale = scale
        if settings.optimizer.clip_norm is not None:
            square = sum(shard.norm_square() for shard in self._shards)
            dense_scale = clipped_scale(scale, square, settings.optimizer.clip_norm)
        for shard in self._shards:
            shard.commit(scale=scale, dense_scale=dense_scale, factor=self._schedule(step))

    def _save(self, step: int, position: int) -> Path:
        """Write the last checkpoint, as any run does."""
        partial = checkpoints.begin(self.folder, step)
        checkpoints.write_statistics(statistics_vector(self._model.graph), partial)
        for number, shard in enumerate(self._shards):
            if self._wire.feedback is not None and self._wire.feedback.is_any:
                kept = self._wire.feedback.now[self._blueprint.dense_slice(number)]
                shard.returned.add(kept, worker="here", checkpoint=step)
            for future in shard.save(partial, step):
                future.result()
        manifest = RunManifest(
            step=step,
            position=position,
            dense_steps=self._shards[0].dense_steps,
            num_servers=len(self._shards),
            samples=self._blueprint.samples,
            fingerprint=Fingerprint.of(self._blueprint),
        )
        return checkpoints.publish(partial, msgspec.structs.replace(manifest, files=checksums_in(partial, only="**/*")))

    def close(self) -> None:
        """Give back memory and files."""
        for shard in self._shards:
            shard.close()
        remove_private_folder(self._blueprint.private_folder)


def answer_as(shard: Shard) -> Callable[[Envelope], tuple[Any, Sequence[Any]]]:
    """Return what answers for a server, without its process."""
    wire = AnswerWire(shard)

    def answer(envelope: Envelope) -> tuple[Any, Sequence[Any]]:
        message = envelope.message
        if isinstance(message, Pull):
            return wire.answer(envelope, 0.0, owner="here")
        if not isinstance(message, Push):
            raise TrainingError(f"a server is asked for {type(message).__name__}", hint="a bug: report it")
        part = gradients_in(message, envelope.arrays, shard.kept, shard.exact, len(shard.values))
        if part is None:
            return Forgotten(), ()
        shard.push(part)
        return Pushed(), ()

    return answer


def _always() -> bool:
    """Say that an answer is wanted."""
    return True
