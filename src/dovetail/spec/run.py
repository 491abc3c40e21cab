"""A training run as users describe it: model, data, workers and their limits, how they work together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number, check_whole_number

Mode = Literal["sync", "ssp", "async"]
Dense = Literal["ring", "ps"]
"""In the order that plans have them: Python takes two Literals of the same words for one, and keeps the first."""
Reduction = Literal["mean", "sum"]
Meta = msgspec.Meta


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: unknown keys are errors."""


class RunModel(_Section, frozen=True):
    """The model to train."""

    name: Annotated[str, Meta(description="ctr-dnn, 2emb, dlrm, matchnet, nce, or package.module:function")]
    options: Annotated[
        dict[str, Any], Meta(description="what the model is built with, e.g. { num_rows = 100_000 }")
    ] = {}
    loss: Annotated[str | None, Meta(description="a loss by name, instead of the model's own")] = None

    def __post_init__(self) -> None:
        """Refuse a model without a name."""
        check_name(self)


class RunData(_Section, frozen=True):
    """The data to train on."""

    name: Annotated[str, Meta(description="clicks, criteo, csv, parquet, or package.module:function")] = "clicks"
    options: Annotated[dict[str, Any], Meta(description='options of the data, e.g. { path = "day.tsv.gz" }')] = {}
    samples: Annotated[int | None, Meta(description="how many samples an epoch has; absent: all there are")] = None
    shuffle: Annotated[bool, Meta(description="whether the order of samples is drawn from (seed, epoch)")] = True
    block_samples: Annotated[
        int, Meta(description="neighbours that are read together and shuffled within, at least 1")
    ] = 512

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        check_name(self)
        check_whole_number(self, "block_samples", at_least=1)
        if self.samples is not None:
            check_whole_number(self, "samples", at_least=1)


class RunTraining(_Section, frozen=True):
    """How the workers train together."""

    batch: Annotated[int | None, Meta(description="samples of one step over all workers; absent: the model's own")] = (
        None
    )
    epochs: Annotated[int, Meta(description="how often the data are seen, at least 1")] = 1
    mode: Annotated[
        Mode, Meta(description="sync (as one process would), ssp (bounded staleness) or async (nobody waits)")
    ] = "sync"
    dense: Annotated[
        Dense, Meta(description="where dense parameters are updated: ps (on the servers) or ring (all-reduce)")
    ] = "ps"
    staleness: Annotated[int, Meta(description="with ssp: tasks that a worker may be ahead of the slowest")] = 4
    micro_batch: Annotated[int, Meta(description="samples that a worker computes at once, at most")] = 2048
    accumulate: Annotated[
        int, Meta(description="batches whose gradients are added up to one step; each is computed by itself")
    ] = 1
    reduction: Annotated[
        Reduction, Meta(description="mean: gradients are divided by the samples; sum: they are not")
    ] = "mean"
    seed: Annotated[int, Meta(description="of initial values and of the order of the data")] = 0
    tail: Annotated[
        float | None,
        Meta(
            description="the part of a batch that is split small and taken by whoever is free, 0 to 0.5; "
            "absent: by how well speeds are known"
        ),
    ] = None
    balance: Annotated[bool, Meta(description="whether shares follow the workers' speeds; else they are equal")] = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and a ring that would not wait."""
        if self.batch is not None:
            check_whole_number(self, "batch", at_least=1)
        check_whole_number(self, "epochs", at_least=1)
        check_whole_number(self, "staleness", at_least=0)
        check_whole_number(self, "micro_batch", at_least=1)
        check_whole_number(self, "accumulate", at_least=1)
        if self.tail is not None:
            check_number(self, "tail", at_least=0.0, at_most=0.5)
        if self.dense == "ring" and self.mode != "sync":
            raise SpecError(
                f'is "ring", and mode is "{self.mode}"', key="dense", hint='a ring needs mode = "sync"; or dense = "ps"'
            )


class RunSchedule(_Section, frozen=True):
    """How the learning rate changes."""

    name: Annotated[str, Meta(description="constant, warmup, inverse-sqrt, linear or cosine")] = "constant"
    warmup_steps: Annotated[int | None, Meta(description="steps of rising rates")] = None
    total_steps: Annotated[int | None, Meta(description="steps until the rate has fallen, for linear and cosine")] = (
        None
    )
    floor: Annotated[float | None, Meta(description="the factor that the rate falls to, for linear and cosine")] = None

    def settings(self) -> dict[str, float]:
        """Return the settings that were given."""
        given = {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps, "floor": self.floor}
        return {name: value for name, value in given.items() if value is not None}


class RunGroup(_Section, frozen=True):
    """Dense parameters, by the names they have in the model."""

    pattern: Annotated[str, Meta(description="of names, with * and ?, e.g. *.bias")]
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the optimizer's")] = None
    settings: Annotated[dict[str, float], Meta(description="on top of the optimizer's, e.g. { weight_decay = 0 }")] = {}

    def __post_init__(self) -> None:
        """Refuse no pattern, and a rate that is not above zero."""
        if not self.pattern.strip():
            raise SpecError("is empty", key="pattern", hint='name parameters, e.g. "*.bias"')
        if self.learning_rate is not None:
            check_number(self, "learning_rate", above=0.0)


class RunOptimizer(_Section, frozen=True):
    """What updates the parameters, on the servers."""

    name: Annotated[
        str | None,
        Meta(description="of dense parameters: sgd, momentum, adagrad, adam, adamw; absent: the model's own"),
    ] = None
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the model's own")] = None
    rows: Annotated[
        str | None,
        Meta(description="of embedding rows: sgd, adagrad, row-wise-adagrad, adam, ftrl; absent: as `name`"),
    ] = None
    rows_learning_rate: Annotated[float | None, Meta(description="of embedding rows; absent: learning_rate")] = None
    settings: Annotated[
        dict[str, float], Meta(description="of the dense one, e.g. { beta1 = 0.9, beta2 = 0.98, weight_decay = 0.1 }")
    ] = {}
    rows_settings: Annotated[dict[str, float], Meta(description="of that of rows, e.g. { first_sum = 0.1 }")] = {}
    groups: Annotated[
        Sequence[RunGroup], Meta(description="dense parameters with settings of their own; the first that fits counts")
    ] = ()
    schedule: RunSchedule = RunSchedule()
    clip_norm: Annotated[
        float | None, Meta(description="the most that the norm of the dense gradient may be, above zero")
    ] = None
    clip_value: Annotated[
        float | None, Meta(description="the most that a number of the dense gradient may be, either way, above zero")
    ] = None

    def __post_init__(self) -> None:
        """Refuse rates and limits that are not above zero."""
        for name in ("learning_rate", "rows_learning_rate", "clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_number(self, name, above=0.0)


class RunServers(_Section, frozen=True):
    """The parameter servers."""

    count: Annotated[int, Meta(description="how many servers share the parameters, at least 1")] = 1
    host_bytes: Annotated[int, Meta(description="memory for embedding rows and their index, for each server")] = 1 << 30
    folder: Annotated[
        str | None, Meta(description="where rows that do not fit into memory go; absent: inside the run's folder")
    ] = None
    cores: Annotated[float | None, Meta(description="CPU quota of each server, in cores; needs root")] = None

    def __post_init__(self) -> None:
        """Refuse no servers, and no memory."""
        check_whole_number(self, "count", at_least=1)
        check_whole_number(self, "host_bytes", at_least=1 << 16)
        if self.cores is not None:
            check_number(self, "cores", above=0.0)


class RunWorker(_Section, frozen=True):
    """A worker, or several alike."""

    name: Annotated[str, Meta(description="the worker's name; with a count, the first part of their names")] = "worker"
    count: Annotated[int, Meta(description="how many workers like this, at least 1")] = 1
    threads: Annotated[int, Meta(description="threads of each worker, at least 1")] = 1
    device: Annotated[str, Meta(description='where it computes: "cpu" or "cuda", "cuda:1", ...')] = "cpu"
    share: Annotated[
        float | None, Meta(description="its part of every batch, pinned by hand, 0 to 1; absent: by its speed")
    ] = None
    memory_bytes: Annotated[int | None, Meta(description="memory it may use; absent: what the machine has")] = None
    cores: Annotated[float | None, Meta(description="CPU quota in cores, e.g. 0.4; needs root")] = None

    def __post_init__(self) -> None:
        """Refuse no worker, no threads, shares of more than all."""
        check_name(self)
        check_whole_number(self, "count", at_least=1)
        check_whole_number(self, "threads", at_least=1)
        if self.share is not None:
            check_number(self, "share", at_least=0.0, at_most=1.0)
        if self.memory_bytes is not None:
            check_whole_number(self, "memory_bytes", at_least=1)
        if self.cores is not None:
            check_number(self, "cores", above=0.0)


class RunSaving(_Section, frozen=True):
    """When the state of the run is kept; it always is at the end."""

    every_steps: Annotated[int | None, Meta(description="steps (in ssp and async: tasks) from one to the next")] = None
    every_s: Annotated[float | None, Meta(description="seconds from one to the next, as well")] = 300.0
    keep: Annotated[int, Meta(description="how many of the newest are kept, at least 1")] = 3

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.every_steps is not None:
            check_whole_number(self, "every_steps", at_least=1)
        if self.every_s is not None:
            check_number(self, "every_s", above=0.0)
        check_whole_number(self, "keep", at_least=1)


class RunValidation(_Section, frozen=True):
    """Data that are not trained on, and when the model is tried on them; absent, it is not."""

    name: Annotated[str | None, Meta(description="data as in [data]; absent: those of the run")] = None
    options: Annotated[
        dict[str, Any], Meta(description="options of these data, on top of the run's where they are of one name")
    ] = {}
    samples: Annotated[int, Meta(description="how many samples are looked at, at most")] = 100_000
    every_steps: Annotated[int | None, Meta(description="steps from one to the next")] = None
    every_epochs: Annotated[
        int | None, Meta(description="epochs from one to the next; absent both: at the end of every epoch")
    ] = None
    metric: Annotated[str, Meta(description="what is best: loss, or a metric of the model")] = "loss"
    patience: Annotated[
        int | None, Meta(description="how often in a row it may not get better before the run stops; absent: never")
    ] = None
    least_gain: Annotated[float, Meta(description="by how much it has to get better to count")] = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_whole_number(self, "samples", at_least=1)
        for name in ("every_steps", "every_epochs", "patience"):
            if getattr(self, name) is not None:
                check_whole_number(self, name, at_least=1)
        check_number(self, "least_gain", at_least=0.0)

    @property
    def is_wanted(self) -> bool:
        """Whether there is any."""
        return bool(self.name or self.options or self.every_steps or self.every_epochs or self.patience)

    @property
    def epochs(self) -> int | None:
        """Epochs from one to the next; None where steps count."""
        return self.every_epochs or (None if self.every_steps else 1)


class RunNetwork(_Section, frozen=True):
    """How the processes reach each other."""

    address: Annotated[str, Meta(description="the address that coordinator and servers listen on")] = "127.0.0.1"
    shared_memory: Annotated[bool, Meta(description="whether processes of one host pass tensors through memory")] = True
    trusted_network: Annotated[
        bool, Meta(description="whether a ring may cross hosts: it neither encrypts nor authenticates")
    ] = False


class RunFaults(_Section, frozen=True):
    """What happens when processes die."""

    restarts: Annotated[int, Meta(description="how often each process is started again, at least 0")] = 100
    restart_workers: Annotated[bool, Meta(description="whether dead workers are started again")] = True
    patience_s: Annotated[float, Meta(description="the least silence after which a process counts as lost")] = 10.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_whole_number(self, "restarts", at_least=0)
        check_number(self, "patience_s", above=0.0)


class Run(_Section, frozen=True):
    """A whole run file."""

    model: RunModel
    data: RunData = RunData()
    training: RunTraining = RunTraining()
    optimizer: RunOptimizer = RunOptimizer()
    servers: RunServers = RunServers()
    workers: Sequence[RunWorker] = msgspec.field(name="worker", default=(RunWorker(count=2),))
    checkpoint: RunSaving = RunSaving()
    validation: RunValidation = RunValidation()
    network: RunNetwork = RunNetwork()
    faults: RunFaults = RunFaults()

    def __post_init__(self) -> None:
        """Refuse a run without workers, two workers of one name, and shares of more than all."""
        if not self.workers:
            raise SpecError("is empty", key="worker", hint="add at least one [[worker]]")
        names = [name for name, _ in self.each_worker()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f'has two called "{twice[0]}"', key="worker", hint="give each its own name")
        pinned = sum(worker.share or 0.0 for _, worker in self.each_worker())
        if pinned > 1.0 + 1e-9:
            raise SpecError(f"pins shares that add up to {pinned:g}", key="worker", hint="shares add up to 1 at most")

    def each_worker(self) -> list[tuple[str, RunWorker]]:
        """Return every single worker with its name."""
        found = []
        for worker in self.workers:
            if worker.count == 1:
                found.append((worker.name, worker))
            else:
                found.extend((f"{worker.name}-{number}", worker) for number in range(worker.count))
        return found
