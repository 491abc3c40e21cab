"""What is recorded and reported of a run: speed, loss, AUC, shares, idle times and link widths, whoever trains it.

A line a second in its folder and for TensorBoard, a `Report` for those who watch, and in the end its summary.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dovetail.models.ratios import live_ratios, ratio_value
from dovetail.models.schedules import make_schedule
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.folder import (
    EVENTS,
    METRICS,
    STEPS,
    TENSORBOARD,
    TIMELINE,
    WIDTHS,
    LinkSummary,
    PrivacySummary,
    RunSummary,
    ServerSummary,
    StageSummary,
    TableSummary,
    WorkerSummary,
)
from dovetail.runtime.messages import Done, Report, ServerStats, Span, Tuned, WorkerStatus

MOST_WAITING = 1000
END_S = 10.0


class TensorBoardFile:
    """A run's one file of scalars, to which all its processes add; a full disk leaves gaps and is no error.

    TensorBoard follows the newest file of a folder alone, so several would hide each other's figures.
    """

    def __init__(self, folder: Path) -> None:
        """Begin the file, or go on with it; what writes it is loaded meanwhile, since that takes a second."""
        self._path = folder / EVENTS
        self._file: int | None = None
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        folder.mkdir(exist_ok=True)
        self._loading = threading.Thread(target=self._load, name="dovetail-board", daemon=True)
        self._loading.start()

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures of one moment."""
        self._waiting = [*self._waiting, (time.time(), step, dict(figures))][-MOST_WAITING:]
        if self._file is not None:
            self._write_waiting(self._file)

    def close(self) -> None:
        """Close the file."""
        self._loading.join(END_S)
        if self._file is not None:
            self._write_waiting(self._file)
            os.close(self._file)
            self._file = None

    def _load(self) -> None:
        import tensorboardX.proto.event_pb2  # noqa: PLC0415 - slow, and only who writes figures needs it
        import tensorboardX.record_writer  # noqa: F401, PLC0415

        how = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        with suppress(OSError):
            try:
                file = os.open(self._path, how | os.O_CREAT | os.O_EXCL, 0o644)
                _append(file, _record(time.time(), file_version="brain.Event:2"))
            except FileExistsError:
                file = os.open(self._path, how)
            self._file = file

    def _write_waiting(self, file: int) -> None:
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        waiting, self._waiting = self._waiting, []
        records = b""
        for moment_s, step, figures in waiting:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
            records += _record(moment_s, step=step, summary=Summary(value=values))
        with suppress(OSError):
            _append(file, records)


def _record(moment_s: float, **what: Any) -> bytes:
    """Return an event as the file has it: its length and itself, each with a checksum."""
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboardX.record_writer import masked_crc32c  # noqa: PLC0415

    event = Event(wall_time=moment_s, **what).SerializeToString()
    length = struct.pack("<Q", len(event))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), event, struct.pack("<I", masked_crc32c(event))))


def _append(file: int, records: bytes) -> None:
    """Write at the end of a file, in one piece or, on a full disk, not at all."""
    written = os.write(file, records)
    if written < len(records):
        os.ftruncate(file, os.lseek(file, 0, os.SEEK_CUR) - written)


class LinkWidths:
    """What was decided of each link, as workers tell it."""

    def __init__(self, folder: Path) -> None:
        """Write every decision into the run's folder as well, for the timeline."""
        self._file = folder / WIDTHS
        self.summary: dict[str, LinkSummary] = {}

    def add(self, message: Tuned) -> str:
        """Take in a decision; return it in words."""
        name = f"{message.name} {message.link}"
        before = self.summary.get(name, LinkSummary(bits=32, gain=1.0, changes=0))
        is_change = message.before != message.bits
        gain = 1.0 if message.bits == 32 else before.gain if is_change else before.gain * message.gain
        self.summary[name] = LinkSummary(bits=message.bits, gain=round(gain, 3), changes=before.changes + is_change)
        line = [round(time.time(), 3), message.name, message.link, message.before, message.bits, message.gain]
        with suppress(OSError), self._file.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        if is_change:
            return f"{name}: {message.bits} bits instead of {message.before}, for {message.reason}"
        return f"{name}: with {message.bits} bits {message.reason} ({message.gain:.1f}x)"

    def bits_of(self, worker: str) -> str:
        """Return the fewest bits of a worker's links, there and back; nothing where none was ever chosen."""
        mine = {name: each.bits for name, each in self.summary.items() if name.startswith(f"{worker} ")}
        if not mine:
            return ""
        there = [bits for name, bits in mine.items() if name.startswith(f"{worker} to ")]
        back = [bits for name, bits in mine.items() if name.startswith(f"{worker} from ")]
        return f"{min(there, default=32)}/{min(back, default=32)}"


EVERY_S = 1.0
WINDOW = 8
"""Seconds over which shares and idle times are told."""
RECENT = 0.95
"""What counts by score keep of their weight from one second to the next."""
NO_SERVERS: Mapping[str, ServerStats] = {}
NO_LINKS: Mapping[str, LinkSummary] = {}
State = Literal["starting", "running", "going back", "saving", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A step counts, or in ssp and async a task."""

    step: int
    samples: int
    loss: float
    seconds: float | None = None
    by_worker: Mapping[str, int] | None = None
    gradient_norm: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands."""

    step: int
    position: int
    """Of all epochs, the first sample that was not handed out."""
    samples: int
    """Those that count, over all epochs."""
    generation: int = 0


@dataclass(slots=True)
class WorkerWindow:
    """What a worker did in the last seconds."""

    samples: list[int] = field(default_factory=lambda: [0])
    busy_s: list[float] = field(default_factory=lambda: [0.0])
    idle_s: list[float] = field(default_factory=lambda: [0.0])
    compute_s: list[float] = field(default_factory=lambda: [0.0])
    data_s: list[float] = field(default_factory=lambda: [0.0])
    total_samples: int = 0
    total_busy_s: float = 0.0
    total_idle_s: float = 0.0
    total_data_s: float = 0.0
    total_read_s: float = 0.0
    num_rows: int = 0
    """Where it keeps rows: how many it looked up ahead, how many of them did not travel, and their bytes."""
    num_kept: int = 0
    kept_bytes: int = 0

    def add(self, done: Done) -> None:
        """Take in a task."""
        wait_s = done.wait_s if self.total_samples else 0.0  # before its first task it waits for others to start
        self.samples[-1] += done.samples
        self.compute_s[-1] += done.compute_s
        self.busy_s[-1] += done.compute_s + done.fixed_s
        self.idle_s[-1] += wait_s
        self.data_s[-1] += done.data_s
        self.total_data_s += done.data_s
        self.total_read_s += done.read_s
        self.total_samples += done.samples
        self.total_busy_s += done.compute_s + done.fixed_s
        self.total_idle_s += wait_s
        self.num_rows += done.num_rows
        self.num_kept += done.num_kept
        self.kept_bytes += done.kept_bytes

    def turn(self) -> None:
        """Begin the next second."""
        for series in (self.samples, self.busy_s, self.idle_s, self.compute_s, self.data_s):
            series.append(0)
            del series[:-WINDOW]

    @property
    def idle(self) -> float:
        """Return the part of the time in which it waited."""
        total_s = sum(self.busy_s) + sum(self.idle_s)
        return sum(self.idle_s) / total_s if total_s else 0.0

    @property
    def data(self) -> float:
        """Return the part of the time in which it waited for samples to be read."""
        total_s = sum(self.busy_s) + sum(self.idle_s)
        return min(1.0, sum(self.data_s) / total_s) if total_s else 0.0

    @property
    def kept(self) -> float:
        """Return the part of its rows that did not travel."""
        return self.num_kept / self.num_rows if self.num_rows else 0.0

    @property
    def samples_per_s(self) -> float:
        """Return its speed while it computes."""
        seconds = sum(self.compute_s)
        return sum(self.samples) / seconds if seconds else 0.0


class RunFigures:
    """Collects figures and writes a line a second."""

    def __init__(self, folder: Path, blueprint: Blueprint, *, timeline: bool = False) -> None:
        """Open the files; a run that goes on adds to them."""
        self._folder, self._blueprint = folder, blueprint
        schedule = blueprint.run.optimizer.schedule
        self._schedule = make_schedule(schedule.name, **schedule.settings())
        self._begun_s = time.time()
        self._names = live_ratios(blueprint.metrics)
        self._sums = np.zeros((len(self._names), 2))
        self._statistics: dict[str, NDArray[np.float32]] = {}
        self.values: dict[str, float] = {}
        """Of the last seconds' samples, by the name of the metric."""
        self._lines = (folder / METRICS).open("ab", buffering=0)
        self._timeline = (folder / TIMELINE).open("ab") if timeline else None
        self._steps = (folder / STEPS).open("ab", buffering=0) if timeline else None
        self._board = TensorBoardFile(folder / TENSORBOARD)
        self.stages_s: list[float] = []
        self.staged_samples = 0
        """How long each stage computed, for how many samples; a run that is not cut is one stage."""
        self.workers: dict[str, WorkerWindow] = {}
        self.auc = math.nan
        self.loss = math.nan
        self.gradient_norm = math.nan
        self.samples_per_s = 0.0
        self._counts = np.zeros((2, 1))
        self._samples: list[int] = [0]
        self._losses: list[float] = [0.0]
        self._turned_s: list[float] = []

    def add_step(self, counted: Counted) -> None:
        """Take in a step, or a task where each counts by itself; note who did how much where a timeline is kept."""
        self._samples[-1] += counted.samples
        if self._blueprint.private is None:  # what training samples came to would tell of them
            self._losses[-1] += counted.loss
            self.gradient_norm = counted.gradient_norm
        if self._steps is not None and counted.by_worker is not None:
            total = max(1, sum(counted.by_worker.values()))
            shares = {name: round(count / total, 4) for name, count in counted.by_worker.items()}
            seconds = round(counted.seconds or 0.0, 4)
            line = {"step": counted.step, "seconds": seconds, "samples": total, "shares": shares}
            with suppress(OSError):
                self._steps.write(msgspec.json.encode(line) + b"\n")

    def add_task(self, done: Done, counts: tuple[NDArray[Any], ...]) -> None:
        """Take in what a worker says of a task."""
        self.workers.setdefault(done.name, WorkerWindow()).add(done)
        self.staged_samples += done.samples
        stages_s = done.stages_s or (done.compute_s,)
        self.stages_s = [a + b for a, b in zip_longest(self.stages_s, stages_s, fillvalue=0.0)]
        if len(counts) == 4 and self._blueprint.private is None:
            self._add_counts(done.name, *counts)
        self.add_spans(done.name, done.spans)

    def add_spans(self, name: str, spans: Sequence[Span]) -> None:
        """Write what somebody did when, where a timeline is kept."""
        if self._timeline is not None:
            for span in spans:
                line = msgspec.json.encode([name, span.kind, span.start_s, span.end_s, span.step])
                with suppress(OSError):
                    self._timeline.write(line + b"\n")

    def _add_counts(
        self,
        name: str,
        clicked: NDArray[Any],
        quiet: NDArray[Any],
        sums: NDArray[Any],
        statistics: NDArray[Any],
    ) -> None:
        """Take in what a worker counted since it last told."""
        if len(clicked):
            both = np.stack([clicked, quiet]).astype(np.float64)
            self._counts = both + (self._counts if self._counts.shape == both.shape else 0.0)
        if sums.shape == self._sums.shape:
            self._sums = self._sums + sums
        if len(statistics):
            self._statistics[name] = np.array(statistics, dtype=np.float32)

    def statistics(self) -> NDArray[np.float32] | None:
        """Return the workers' running means and variances, averaged by the samples that each has seen."""
        if not self._statistics:
            return None
        shares = np.array([max(1, self.workers[name].total_samples) for name in self._statistics], dtype=np.float64)
        values = np.average(np.stack(list(self._statistics.values())), axis=0, weights=shares)
        return values.astype(np.float32)

    def _learning_rate(self, step: int) -> float:
        """Return the rate of dense parameters at a step."""
        return float(self._blueprint.optimizer.get("learning_rate", 0.0)) * self._schedule(step)

    @property
    def _total_samples(self) -> int:
        """Return the samples of all epochs."""
        return self._blueprint.samples * self._blueprint.run.training.epochs

    def turn(self, now_s: float, at: Standing, servers: Mapping[str, ServerStats] = NO_SERVERS) -> None:
        """Close a second: write its line."""
        self._turned_s.append(now_s)
        del self._turned_s[: -WINDOW - 1]
        if len(self._turned_s) > 1:
            span_s = self._turned_s[-1] - self._turned_s[0]
            self.samples_per_s = sum(self._samples[-len(self._turned_s) + 1 :]) / span_s
        if sum(self._samples) and self._blueprint.private is None:
            self.loss = sum(self._losses) / sum(self._samples)
        self.auc = area(self._counts)
        self._counts *= RECENT
        self.values = {
            name: ratio_value(name, *sums) for name, sums in zip(self._names, self._sums.tolist(), strict=True)
        }
        self._sums *= RECENT
        total = sum(sum(window.samples) for window in self.workers.values())
        line = {
            "time_s": round(time.time() - self._begun_s, 3),
            "unix_s": round(time.time(), 3),
            "generation": at.generation,
            "step": at.step,
            "epoch": at.position // self._blueprint.samples,
            "samples": at.samples,
            "total_samples": self._total_samples,
            "learning_rate": round(self._learning_rate(at.step), 12),
            "samples_per_s": round(self.samples_per_s, 1),
            "loss": _number(self.loss),
            "auc": _number(self.auc),
            "metrics": {name: _number(value) for name, value in self.values.items()},
            "gradient_norm": _number(self.gradient_norm),
            "workers": {
                name: {
                    "share": round(sum(window.samples) / total, 4) if total else 0.0,
                    "samples_per_s": round(window.samples_per_s, 1),
                    "idle": round(window.idle, 4),
                    "data": round(window.data, 4),
                    **({"kept": round(window.kept, 4), "kept_bytes": window.kept_bytes} if window.num_rows else {}),
                }
                for name, window in self.workers.items()
            },
            "servers": {name: msgspec.to_builtins(server_summary(stats)) for name, stats in servers.items()},
        }
        with suppress(OSError):  # a full disk leaves gaps in the figures
            self._lines.write(msgspec.json.encode(line) + b"\n")
            if self._timeline is not None:
                self._timeline.flush()
        self._write_board(line)
        self._samples.append(0)
        self._losses.append(0.0)
        del self._samples[:-WINDOW], self._losses[:-WINDOW]
        for window in self.workers.values():
            window.turn()

    def _write_board(self, line: dict[str, Any]) -> None:
        """Write the figures for TensorBoard."""
        names = ("samples_per_s", "loss", "auc", "learning_rate", "gradient_norm")
        figures = {name: line[name] for name in names if line.get(name) is not None}
        figures |= {name: value for name, value in line["metrics"].items() if value is not None}
        for worker, of_worker in line["workers"].items():
            figures |= {f"share/{worker}": of_worker["share"], f"idle/{worker}": of_worker["idle"]}
        self._board.write(figures, int(line["samples"]))

    def worker_status(self, name: str, state: str, bits: str = "") -> WorkerStatus:
        """Return how a worker does."""
        window = self.workers.get(name, WorkerWindow())
        total = sum(sum(each.samples) for each in self.workers.values())
        return WorkerStatus(
            name=name,
            state=state,
            share=sum(window.samples) / total if total else 0.0,
            samples_per_s=window.samples_per_s,
            idle=window.idle,
            samples=window.total_samples,
            bits=bits,
            kept=window.kept if window.num_rows else None,
            data=window.data,
        )

    def report(
        self,
        state: State,
        at: Standing,
        *,
        checkpoint_step: int,
        workers: Iterable[WorkerStatus],
        events: tuple[str, ...],
        **more: Any,
    ) -> Report:
        """Return how the run goes; `more` is what only runs with servers have."""
        training = self._blueprint.run.training
        return Report(
            state=state,
            generation=at.generation,
            step=at.step,
            epoch=min(at.position // self._blueprint.samples, training.epochs - 1),
            samples=at.samples,
            total_samples=self._total_samples,
            samples_per_s=self.samples_per_s,
            loss=self.loss,
            auc=self.auc,
            checkpoint_step=checkpoint_step,
            workers=tuple(workers),
            events=events,
            metrics=tuple(self.values.items()),
            learning_rate=self._learning_rate(at.step),
            gradient_norm=self.gradient_norm,
            **more,
        )

    def write_summary(
        self,
        at: Standing,
        checkpoint: Path,
        *,
        servers: Mapping[str, ServerStats] = NO_SERVERS,
        links: Mapping[str, LinkSummary] = NO_LINKS,
        tables: tuple[TableSummary, ...] = (),
        privacy: PrivacySummary | None = None,
    ) -> None:
        """Write what the run came to; a full disk leaves no summary, and the model is none the worse."""
        rows = [stats.rows for stats in servers.values()]
        summary = RunSummary(
            step=at.step,
            samples=at.samples,
            seconds=round(time.time() - self._begun_s, 3),
            loss=self.loss,
            auc=self.auc,
            metrics=dict(self.values),
            workers=self._worker_summaries(),
            servers={name: server_summary(stats) for name, stats in sorted(servers.items())},
            imbalance=round(max(rows) * len(rows) / sum(rows), 4) if rows and sum(rows) else 1.0,
            checkpoint=checkpoint.name,
            stages=self._stage_summaries(),
            links=dict(links),
            tables=tables,
            privacy=privacy,
        )
        with suppress(OSError):
            summary.write(self._folder)

    def _stage_summaries(self) -> tuple[StageSummary, ...]:
        """Return what the stages of the run took, where it has any."""
        run = self._blueprint.run
        return tuple(
            StageSummary(
                first_layer=stage.first_layer,
                last_layer=stage.last_layer,
                resource=stage.resource,
                workers=len(run.workers_of(number)),
                samples=self.staged_samples,
                busy_s=round(busy_s, 3),
            )
            for number, (stage, busy_s) in enumerate(zip(run.stages, self.stages_s, strict=False))
        )

    def _worker_summaries(self) -> dict[str, WorkerSummary]:
        """Return each worker's part in the whole."""
        total = sum(window.total_samples for window in self.workers.values())
        return {
            name: WorkerSummary(
                samples=window.total_samples,
                share=round(window.total_samples / total, 4) if total else 0.0,
                busy_s=round(window.total_busy_s, 3),
                idle_s=round(window.total_idle_s, 3),
                idle=round(window.total_idle_s / max(1e-9, window.total_busy_s + window.total_idle_s), 4),
                data_s=round(window.total_data_s, 3),
                read_s=round(window.total_read_s, 3),
                looked_up_rows=window.num_rows,
                kept_rows=window.num_kept,
                kept_bytes=window.kept_bytes,
            )
            for name, window in sorted(self.workers.items())
        }

    def close(self) -> None:
        """Close the files."""
        self._board.close()
        with suppress(OSError):
            self._lines.close()
            if self._timeline is not None:
                self._timeline.close()
            if self._steps is not None:
                self._steps.close()


def area(counts: NDArray[np.float64]) -> float:
    """Return the area under the ROC curve from counts of clicked and other samples by rising score."""
    clicked, quiet = counts
    pairs = clicked.sum() * quiet.sum()
    if not pairs:
        return math.nan
    below = np.cumsum(quiet) - quiet
    return float((clicked * (below + quiet / 2)).sum() / pairs)


def _number(value: float) -> float | None:
    """Return a number as JSON has it: nothing where there is none."""
    return round(value, 6) if math.isfinite(value) else None


def server_summary(stats: ServerStats) -> ServerSummary:
    """Return what a server held and did, by what it said last."""
    return ServerSummary(
        rows=stats.rows,
        pushed_keys=stats.pushed_keys,
        busy_s=round(stats.busy_s, 3),
        log_s=round(stats.log_s, 3),
        log_bytes=stats.log_bytes,
    )
