"""What a run is known by: model, data and code, order and optimizers.

A worker that joins has its looks at data and code in common with the run; a run that goes on, this with its checkpoint:

| what differs | what happens |
|---|---|
| tables, dense parameters, columns, kind of optimizer, seed of first values | refused |
| frozen parameters and buffers, a loss that is an object | refused |
| order, data and how many, options of the model | refused within an epoch: samples would count twice or never |
| the same at the end of an epoch | allowed, and said |
| batch, mode, place of dense parameters, workers, servers, rates, code | allowed, and said |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from dovetail.runtime.blueprint import Blueprint, DenseEntry, SourceFingerprint, TableSpec

Settings = dict[str, str | float]
ORDER = {
    "seed": "training.seed",
    "shuffle": "data.shuffle",
    "block_samples": "data.block_samples",
    "window_samples": "data.window_samples",
}
CONDUCT = {
    "batch": "training.batch",
    "mode": "training.mode",
    "dense": "training.dense",
    "reduction": "training.reduction",
    "servers": "servers.count",
    "workers": "the number of workers",
}
"""What the parts of a fingerprint are called in a run file."""
MADE_BY = {
    "seed": "the seed of first values",
    "fixed": "the checksum of frozen parameters and buffers",
    "own_loss": "the loss that is an object",
}


class FingerprintPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a fingerprint."""


class ModelPrint(FingerprintPart, frozen=True):
    """What parameters there are, and what they were made by."""

    name: str
    options: dict[str, Any]
    loss: str | dict[str, str] | None
    seed: int
    """Of first values, which rows that nobody has used yet still have."""
    tables: tuple[TableSpec, ...]
    dense: tuple[DenseEntry, ...]
    fixed: str = ""
    """A checksum of the file of what is not trained: frozen parameters and buffers; empty where there is none."""
    own_loss: str = ""
    """What the loss is called where it is an object of a Python program."""


class DataPrint(FingerprintPart, frozen=True):
    """Which samples there are."""

    name: str
    options: dict[str, Any]
    samples: int
    looks: SourceFingerprint


class OrderPrint(FingerprintPart, frozen=True):
    """What the order of samples in an epoch depends on."""

    seed: int
    shuffle: bool
    block_samples: int
    window_samples: int | None = None
    """None in runs of before there were windows: all samples are drawn from at once."""


class ConductPrint(FingerprintPart, frozen=True):
    """How the run was done: of no matter to what a checkpoint holds."""

    batch: int
    mode: str
    dense: str
    reduction: str
    servers: int
    workers: int


class Matter(Enum):
    """What a difference means for going on."""

    NEVER = "it cannot go on"
    AT_THE_END = "it can go on at the end of an epoch"
    SAFE = "it can go on"


@dataclass(frozen=True, slots=True)
class FingerprintDifference:
    """Something that a checkpoint has otherwise than a run."""

    what: str
    before: str
    now: str
    matter: Matter

    def __str__(self) -> str:
        """Return it as a clause."""
        return f"{self.what} was {self.before} and is now {self.now}"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint was made by."""

    model: ModelPrint
    data: DataPrint
    order: OrderPrint
    optimizer: Settings
    row_optimizer: Settings
    conduct: ConductPrint

    @classmethod
    def of(cls, blueprint: Blueprint) -> Fingerprint:
        """Return the fingerprint of a run."""
        run = blueprint.run
        training, data, model = run.training, run.data, run.model
        return cls(
            model=ModelPrint(
                name=model.name,
                options=_plain(model.options),
                loss=model.loss,
                own_loss=blueprint.own_loss,
                seed=blueprint.values_seed,
                tables=blueprint.tables,
                dense=blueprint.dense,
                fixed=blueprint.fixed,
            ),
            data=DataPrint(
                name=data.name,
                options=_plain(data.options),
                samples=blueprint.samples,
                looks=blueprint.looks,
            ),
            order=OrderPrint(
                seed=training.seed,
                shuffle=data.shuffle,
                block_samples=data.block_samples,
                window_samples=data.window_samples,
            ),
            optimizer=_plain(blueprint.optimizer),
            row_optimizer=_plain(blueprint.row_optimizer),
            conduct=ConductPrint(
                batch=blueprint.batch,
                mode=training.mode,
                dense=training.dense,
                reduction=training.reduction,
                servers=blueprint.num_servers,
                workers=len(run.each_worker()),
            ),
        )

    def differences(self, now: Fingerprint) -> list[FingerprintDifference]:
        """Return what a run that would go on has otherwise, the gravest first."""
        found = [
            *_compared(self.data.looks, now.data.looks, _inside("data", "numbers", "slots", "fields"), Matter.NEVER),
            *_listed("the embedding table", self.model.tables, now.model.tables),
            *_listed("the dense parameter", self.model.dense, now.model.dense),
            *_compared(self.model, now.model, MADE_BY, Matter.NEVER),
            *_optimizers("optimizer", self.optimizer, now.optimizer),
            *_optimizers("row optimizer", self.row_optimizer, now.row_optimizer),
            *_compared(self.order, now.order, ORDER, Matter.AT_THE_END),
            *_compared(self.model, now.model, _inside("model", "name", "options", "loss"), Matter.AT_THE_END),
            *self._data_differences(now),
            *_compared(self.conduct, now.conduct, CONDUCT, Matter.SAFE),
        ]
        grades = list(Matter)
        return sorted(found, key=lambda difference: grades.index(difference.matter))

    def _data_differences(self, now: Fingerprint) -> Iterator[FingerprintDifference]:
        """Yield how the data are others: the same samples may lie elsewhere, and others under the same name."""
        first, first_now = self.data.looks.first, now.data.looks.first
        are_the_same = bool(first) and first == first_now
        matter = Matter.SAFE if are_the_same else Matter.AT_THE_END
        yield from _compared(self.data, now.data, _inside("data", "samples"), Matter.AT_THE_END)
        yield from _compared(self.data, now.data, _inside("data", "name", "options"), matter)
        if first and first_now and not are_the_same:
            yield FingerprintDifference("the first samples' checksum", first, first_now, Matter.AT_THE_END)
        parts = {"parts": "the checksum of where the data's parts begin"}
        yield from _compared(self.data.looks, now.data.looks, parts, Matter.AT_THE_END)
        yield from _compared(self.data.looks, now.data.looks, {"code": "the checksum of code"}, Matter.SAFE)


def _plain(value: Any) -> Any:
    """Return a value as a file holds it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _inside(section: str, *names: str) -> dict[str, str]:
    """Return keys of a run file's section."""
    return {name: f"{section}.{name}" for name in names}


def _compared(before: Any, now: Any, names: Mapping[str, str], matter: Matter) -> Iterator[FingerprintDifference]:
    """Yield the entries that differ, under the names that users know them by."""
    for entry, name in names.items():
        old, new = getattr(before, entry), getattr(now, entry)
        if old != new:
            yield FingerprintDifference(name, _shown(old), _shown(new), matter)


def _optimizers(what: str, before: Settings, now: Settings) -> Iterator[FingerprintDifference]:
    """Yield how optimizers differ: another kind has another state, and rates may change."""
    for name in sorted({*before, *now}, key=lambda name: (name != "name", name)):
        old, new = before.get(name), now.get(name)
        if old != new:
            matter = Matter.NEVER if name == "name" else Matter.SAFE
            yield FingerprintDifference(what if name == "name" else f"{what}.{name}", _shown(old), _shown(new), matter)
            if matter is Matter.NEVER:
                return


def _listed(what: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> Iterator[FingerprintDifference]:
    """Yield the first of a list's entries that differs."""
    for number in range(max(len(before), len(now))):
        old = before[number] if number < len(before) else None
        new = now[number] if number < len(now) else None
        if old != new:
            yield FingerprintDifference(f"{what} {number}", _entry(old), _entry(new), Matter.NEVER)
            return


def _entry(entry: TableSpec | DenseEntry | None) -> str:
    """Return a table or dense parameter in words."""
    if entry is None:
        return "not there"
    if isinstance(entry, DenseEntry):
        return f"`{entry.name}` of shape {list(entry.shape)}"
    return f"`{entry.name}` of {entry.num_rows} rows of width {entry.width} and scale {entry.scale:g}"


def _shown(value: Any) -> str:
    """Return a value as a file would have it."""
    return msgspec.json.encode(value).decode()
