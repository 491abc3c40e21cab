"""Every file in a run's folder, and what those say that more than one part reads.

blueprint.json     the run with all defaults filled in, sizes, names and addresses (`blueprint`)
fixed.safetensors  what training leaves as it is: frozen parameters and buffers (`model.frozen`)
model.pickle       a model that was an object, without its parameters (`model.kept_model`)
checkpoints/       one folder for each checkpoint that is kept (`checkpoint`)
best/              the checkpoint that did best on the validation data
validation.jsonl   a line for each time the model was tried on them
privacy.json       what a private run has spent (`spending`)
journal.jsonl      what the coordinator decided (`coordinator.journal`)
metrics.jsonl      a line of figures a second
happened.jsonl     what happened: deaths, restarts, checkpoints, a line each, with the time
steps.jsonl        who did how much of each step, where a timeline is kept
timeline.jsonl     what every worker did when, where it is kept
summary.json       what the run came to
measured-problem.json  what the stages of a plan really took, as a problem that can be planned again
parts.json         what was predicted of each part of a planned run beside what it took
replans.jsonl      a line for each time the run moved to another plan
tensorboard/       the same figures for TensorBoard
logs/NAME.log      what each process says
keys/              a pair of keys for each process
rows/              rows that do not fit into memory, while the run goes on
redo/              what each server did since the last checkpoint, while the run goes on (`server.redo`)
sites/             rounds and exchanges with other sites, where there are any (`sites.exchange_log`)
prometheus.json    where the figures are served, while they are (`monitor.metrics_page`)
lock               whose the run is, while it goes on (`prepare.lock`)
size.json          how many workers a scheduler wants it to have; team.json: who works (`launch.elastic_workers`)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.atomic_file import replace_file
from dovetail.runtime.sealed import read_sealed, write_sealed

BLUEPRINT = "blueprint.json"
CHECKPOINTS = "checkpoints"
BEST = "best"
VALIDATION = "validation.jsonl"
SPENDING = "privacy.json"
JOURNAL = "journal.jsonl"
METRICS = "metrics.jsonl"
HAPPENED = "happened.jsonl"
STEPS = "steps.jsonl"
TIMELINE = "timeline.jsonl"
WIDTHS = "widths.jsonl"
"""Decisions about how many bits links need: time, worker, link, bits before and from then on, measured gain."""
SUMMARY = "summary.json"
MEASURED_PROBLEM = "measured-problem.json"
PARTS = "parts.json"
REPLANS = "replans.jsonl"
FIXED = "fixed.safetensors"
MODEL = "model.pickle"
TENSORBOARD = "tensorboard"
EVENTS = "events.out.tfevents.dovetail"
LOGS = "logs"
KEYS = "keys"
ROWS = "rows"
REDO = "redo"
SITES = "sites"
LOCK = "lock"
SIZE = "size.json"
TEAM = "team.json"
PROMETHEUS = "prometheus.json"


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's part in the whole."""

    samples: int
    share: float
    busy_s: float
    idle_s: float
    idle: float
    data_s: float = 0.0
    """How long it waited for samples that were still being read."""
    read_s: float = 0.0
    """How long cores were busy reading samples for it, whoever waited."""
    looked_up_rows: int = 0
    """Where it keeps rows of servers: how many it looked up ahead, how many of them did not travel, and their bytes."""
    kept_rows: int = 0
    kept_bytes: int = 0


class ServerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a server held and did."""

    rows: int
    pushed_keys: int
    busy_s: float
    log_s: float = 0.0
    """Spent on its redo log, of `busy_s`."""
    log_bytes: int = 0
    """Written to it."""


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a run: its layers, and what they took."""

    first_layer: int
    last_layer: int
    resource: str
    workers: int
    samples: int
    busy_s: float
    """Over all of its workers."""


class LinkSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A link whose width was chosen: the last one, and how many times as fast its transfers were measured to be."""

    bits: int
    gain: float
    changes: int


class TableSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose hot rows lay on a device: where its rows ended, and how many look-ups found theirs there."""

    device_rows: int
    host_rows: int
    disk_rows: int
    hit_ratio: float
    """Of the distinct rows of each batch."""
    lifted: int
    """Rows that came up to the device from below."""
    lowered: int


class PrivacySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a private run has promised, and spent."""

    epsilon: float
    """What all its steps cost together, those of earlier starts too."""
    budget: float
    delta: float
    clip: float
    noise: float
    """Of the last steps, in clips."""
    rate: float
    """The chance of each sample to be in one of them."""
    steps: int
    """All that count as spent."""
    accountant: str
    is_spent: bool
    """Whether the run stopped because another step would have gone beyond its budget."""

    @property
    def words(self) -> str:
        """Return it in words."""
        if self.is_spent:
            return (
                f"the privacy budget is spent: epsilon {self.epsilon:.4g} of {self.budget:g} at delta {self.delta:g} "
                f"after {self.steps:,} steps; the run stopped before its last epoch was over"
            )
        return f"spent epsilon {self.epsilon:.4g} of {self.budget:g} at delta {self.delta:g} in {self.steps:,} steps"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    step: int
    samples: int
    seconds: float
    loss: float | None
    auc: float | None
    metrics: dict[str, float | None] = {}
    """Others, by name."""
    workers: dict[str, WorkerSummary]
    servers: dict[str, ServerSummary]
    imbalance: float
    checkpoint: str
    stages: tuple[StageSummary, ...] = ()
    """Of a run that is cut into stages."""
    links: dict[str, LinkSummary] = {}
    """Those whose widths were chosen, such as `worker-0 to server-0`."""
    tables: tuple[TableSummary, ...] = ()
    """Of a run whose hot rows lie on a device."""
    privacy: PrivacySummary | None = None
    """Of a private run."""

    def write(self, folder: Path) -> None:
        """Write it into the run's folder."""
        write_sealed(folder / SUMMARY, self)

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """Return what a run's folder says."""
        return read_sealed(folder / SUMMARY, cls, hint="the run's last checkpoint is none the worse")


def log_of(folder: Path, name: str) -> Path:
    """Return where a process writes its log."""
    return folder / LOGS / f"{name}.log"


def rows_of(folder: Path, server: str) -> Path:
    """Return where a server's cold rows go."""
    return folder / ROWS / server


def drop_empty_rows(folder: Path) -> None:
    """Remove the folders of cold rows that none are left in; those of a run that was killed stay for the next one."""
    for place in (*sorted((folder / ROWS).rglob("*"), reverse=True), folder / ROWS):
        with suppress(OSError):
            place.rmdir()


def redo_of(folder: Path, server: str, elsewhere: str | None = None) -> Path:
    """Return where a server's redo log goes: `elsewhere` stands for the run's folder."""
    return (folder / REDO if elsewhere is None else Path(elsewhere)) / server


def note_happened(folder: Path, events: Iterable[str]) -> None:
    """Write down what happened to a run just now; a full disk leaves gaps."""
    lines = b"".join(msgspec.json.encode({"unix_s": round(time.time(), 3), "text": text}) + b"\n" for text in events)
    if lines:
        with suppress(OSError), (folder / HAPPENED).open("ab") as file:
            file.write(lines)


class Size(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `size.json` says."""

    workers: int
    gpus: tuple[str, ...] = ()
    """The GPU of each worker, as CUDA_VISIBLE_DEVICES names it; empty: whichever their device says."""


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What `team.json` says."""

    wanted: int
    workers: tuple[str, ...]
    since_s: float
    """Since when, in seconds since 1970."""


def ask_for(folder: Path, workers: int, gpus: tuple[str, ...] = ()) -> None:
    """Ask the launcher of a run for so many workers, each on its own GPU where given; it need not be there yet."""
    replace_file(folder / SIZE, msgspec.json.encode(Size(workers=workers, gpus=gpus)))


def present_in(folder: Path) -> Present | None:
    """Return who works for a run, as its launcher last said; None where it has not."""
    try:
        return msgspec.json.decode((folder / TEAM).read_bytes(), type=Present)
    except (OSError, msgspec.MsgspecError):
        return None
