"""A training run as users describe it: model, data, workers, how they work together; keys set otherwise."""

from __future__ import annotations

import copy
import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_name, check_number, check_whole_number
from dovetail.spec.files import struct_from
from dovetail.spec.privacy import RunPrivacy
from dovetail.spec.run_sections import (
    Meta,
    RunCompression,
    RunExchange,
    RunFaults,
    RunLog,
    RunOptimizer,
    RunSaving,
    RunSite,
    RunStage,
    RunTable,
    RunValidation,
    Section,
    check_worker_name,
)

Mode = Literal["sync", "ssp", "async"]
Dense = Literal["ring", "ps"]
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
Activations = Literal["float32", "bfloat16"]
"""In the order that plans have them: Python takes two Literals of the same words for one, and keeps the first."""
Reduction = Literal["mean", "sum"]
BatchNorm = Literal["global", "own"]

SECTIONS_SEARCHED = ("training", "optimizer", "data", "checkpoint", "validation", "faults", "network", "privacy")
"""Where a key without a section is looked for, in this order."""


class RunModel(Section, frozen=True):
    """The model to train."""

    name: Annotated[str, Meta(description="ctr-dnn, 2emb, dlrm, matchnet, nce, or package.module:function")]
    options: Annotated[
        dict[str, Any], Meta(description="what the model is built with, e.g. { num_rows = 100_000 }")
    ] = msgspec.field(default_factory=dict)
    loss: Annotated[
        str | dict[str, str] | None,
        Meta(
            description="logistic, cross-entropy, squared, absolute, huber, package.module:function, answer-mean (the "
            "model computes it), or one for each part of the model's answer, such as 0.3 * squared; absent: the "
            "model's own, or what labels and answers tell"
        ),
    ] = None
    metric: Annotated[
        str | tuple[str, ...] | None,
        Meta(
            description="auc, log-loss, accuracy, rmse, mae, calibration, recall@K, package.module:function, or a list "
            "of them; absent: what suits the loss"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a model without a name."""
        check_name(self)

    @property
    def metrics(self) -> tuple[str, ...] | None:
        """The metrics that were asked for; None where none were."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


class RunData(Section, frozen=True):
    """The data to train on."""

    name: Annotated[
        str,
        Meta(
            description="a path, clicks, criteo, csv, parquet, arrow, numpy, webdataset, huggingface, or "
            "package.module:function; absent where options have a path: what that is"
        ),
    ] = "clicks"
    options: Annotated[dict[str, Any], Meta(description='options of the data, e.g. { path = "day.tsv.gz" }')] = (
        msgspec.field(default_factory=dict)
    )
    samples: Annotated[int | None, Meta(description="how many samples an epoch has; absent: all there are")] = None
    shuffle: Annotated[bool, Meta(description="whether the order of samples is drawn from (seed, epoch)")] = True
    block_samples: Annotated[
        int, Meta(description="neighbours that are read together and shuffled within, at least 1")
    ] = 512
    window_samples: Annotated[
        int | None,
        Meta(
            description="samples that are drawn from at once, from parts of the data that are drawn at random; absent: "
            "as many as 256 MiB hold"
        ),
    ] = None
    readers: Annotated[
        int | None,
        Meta(
            description="threads of each process that trains which read ahead; absent: in one process as many as keep "
            "it from waiting, beside servers one"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse numbers below one."""
        check_name(self)
        check_whole_number(self, "block_samples", at_least=1)
        for name in ("window_samples", "samples", "readers"):
            if getattr(self, name) is not None:
                check_whole_number(self, name, at_least=1)


class RunTraining(Section, frozen=True):
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
    plan: Annotated[
        str | None,
        Meta(description="a plan whose stages the run has, as with --plan: a file, from the run file's folder"),
    ] = None
    activations: Annotated[Activations, Meta(description="the old name of compression.activations: bfloat16 is 16")] = (
        "float32"
    )
    batch_norm: Annotated[
        BatchNorm | None,
        Meta(description="normalise by the whole batch (global), or each worker by its part (own); absent: see below"),
    ] = None
    compile: Annotated[bool, Meta(description="whether workers compile the model with torch.compile")] = False
    slice_bytes: Annotated[
        int,
        Meta(
            description="in sync, dense gradients go to servers in slices of so many bytes while the backward pass "
            "goes on, where a server has two or more; 0: in one piece"
        ),
    ] = 4 << 20
    balance: Annotated[bool, Meta(description="whether shares follow the workers' speeds; else they are equal")] = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and a ring that would not wait."""
        if self.batch is not None:
            check_whole_number(self, "batch", at_least=1)
        check_whole_number(self, "epochs", at_least=1)
        check_whole_number(self, "staleness", at_least=0)
        check_whole_number(self, "micro_batch", at_least=1)
        check_whole_number(self, "accumulate", at_least=1)
        check_whole_number(self, "slice_bytes", at_least=0)
        if self.tail is not None:
            check_number(self, "tail", at_least=0.0, at_most=0.5)
        if self.dense == "ring" and self.mode != "sync":
            raise SpecError(
                f'is "ring", and mode is "{self.mode}"', key="dense", hint='a ring needs mode = "sync"; or dense = "ps"'
            )


class RunServers(Section, frozen=True):
    """The parameter servers."""

    count: Annotated[int, Meta(description="how many servers share the parameters, at least 1")] = 1
    host_bytes: Annotated[int, Meta(description="memory for embedding rows and their index, for each server")] = 1 << 30
    folder: Annotated[
        str | None, Meta(description="where rows that do not fit into memory go; absent: inside the run's folder")
    ] = None
    cores: Annotated[float | None, Meta(description="CPU quota of each server, in cores; needs root")] = None
    threads: Annotated[
        int | None,
        Meta(description="threads of each server, which share its rows; absent: the cores workers leave, 8 at most"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse no servers, no memory and no threads."""
        check_whole_number(self, "count", at_least=1)
        if self.threads is not None:
            check_whole_number(self, "threads", at_least=1)
        check_whole_number(self, "host_bytes", at_least=1 << 16)
        if self.cores is not None:
            check_number(self, "cores", above=0.0)


class RunWorker(Section, frozen=True):
    """A worker, or several alike."""

    name: Annotated[
        str,
        Meta(description="the worker's name, with a count the first part of it; not coordinator, launcher or server-N"),
    ] = "worker"
    count: Annotated[int, Meta(description="how many workers like this, at least 1")] = 1
    threads: Annotated[int, Meta(description="threads of each worker, at least 1")] = 1
    device: Annotated[str, Meta(description='where it computes: "cpu" or "cuda", "cuda:1", ...')] = "cpu"
    share: Annotated[
        float | None, Meta(description="its part of every batch, pinned by hand, 0 to 1; absent: by its speed")
    ] = None
    memory_bytes: Annotated[int | None, Meta(description="memory it may use; absent: what the machine has")] = None
    cores: Annotated[float | None, Meta(description="CPU quota in cores, e.g. 0.4; needs root")] = None
    stage: Annotated[int, Meta(description="the stage whose layers it holds, from 0")] = 0
    host: Annotated[
        str | None, Meta(description="with --on: the host, or the type of hosts, that it is on; absent: any that fits")
    ] = None
    precision: Annotated[
        Precision,
        Meta(
            description="of matrix products: float32, tf32 (GPUs round inputs to 10 bits), bfloat16 (autocast) or "
            "float16 (autocast, losses scaled)"
        ),
    ] = "float32"
    cache_bytes: Annotated[
        int, Meta(description="memory of its device for rows of servers that need not come again; not in async")
    ] = 0

    def __post_init__(self) -> None:
        """Refuse no worker, no threads, shares of more than all."""
        check_name(self)
        check_whole_number(self, "stage", at_least=0)
        check_whole_number(self, "count", at_least=1)
        check_whole_number(self, "threads", at_least=1)
        if self.share is not None:
            check_number(self, "share", at_least=0.0, at_most=1.0)
        if self.memory_bytes is not None:
            check_whole_number(self, "memory_bytes", at_least=1)
        check_whole_number(self, "cache_bytes", at_least=0)
        if self.cores is not None:
            check_number(self, "cores", above=0.0)


ALONE, TWO = RunWorker(), RunWorker(count=2)
"""The workers of a run that names none: the one that trains, and those beside servers."""


class RunNetwork(Section, frozen=True):
    """How the processes reach each other."""

    address: Annotated[str, Meta(description="the address that coordinator and servers listen on")] = "127.0.0.1"
    shared_memory: Annotated[bool, Meta(description="whether processes of one host pass tensors through memory")] = True
    trusted_network: Annotated[
        bool, Meta(description="whether a ring may cross hosts: it neither encrypts nor authenticates")
    ] = False


MOST_MASKED = 1024
"""Workers whose gradients are added up under masks."""
NO_SERVERS, NO_FAULTS = RunServers(), RunFaults()
"""What a run has that names none: told from one that names the same numbers by being these very objects."""


class Run(Section, frozen=True):
    """A whole run file.

    Who names no worker, and nothing that needs several processes, gets one process with its rows.
    """

    model: RunModel
    data: RunData = RunData()
    training: RunTraining = RunTraining()
    optimizer: RunOptimizer = RunOptimizer()
    servers: RunServers = NO_SERVERS
    table: RunTable = RunTable()
    workers: Sequence[RunWorker] = msgspec.field(name="worker", default=())
    stages: Sequence[RunStage] = msgspec.field(name="stage", default_factory=list)
    checkpoint: RunSaving = RunSaving()
    validation: RunValidation = RunValidation()
    network: RunNetwork = RunNetwork()
    compression: RunCompression = RunCompression()
    privacy: RunPrivacy = RunPrivacy()
    faults: RunFaults = NO_FAULTS
    log: RunLog = RunLog()
    sites: Sequence[RunSite] = msgspec.field(name="site", default_factory=list)
    exchange: RunExchange = RunExchange()

    def __post_init__(self) -> None:
        """Lay out what is left open; refuse names that are taken or no files', and shares of more than all."""
        self._lay_out()
        self._check_stages()
        if self.training.dense == "ring":
            self._check_ring()
        self._check_sites()
        self._check_privacy()
        self._check_masked()
        names = [name for name, _ in self.each_worker()]
        for name in names:
            check_worker_name(name)
        if self.training.mode == "async" and (kept := max(worker.cache_bytes for worker in self.workers)):
            raise SpecError(
                f'is {kept}, and mode is "async", whose workers compute with the newest rows there are',
                key="worker.cache_bytes",
                hint='leave cache_bytes away, or set mode = "ssp", in which rows may be `staleness` tasks old',
            )
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f'has two called "{twice[0]}"', key="worker", hint=self._names_hint())
        if self.faults.replicas >= self.servers.count:
            raise SpecError(
                f"is {self.faults.replicas}, and servers.count = {self.servers.count}",
                key="faults.replicas",
                hint="a copy lies on another server: set servers.count = 2 or more",
            )
        pinned = sum(worker.share or 0.0 for _, worker in self.each_worker())
        if pinned > 1.0 + 1e-9:
            raise SpecError(f"pins shares that add up to {pinned:g}", key="worker", hint="shares add up to 1 at most")

    def _lay_out(self) -> None:
        """Say where rows lie and who works where the file does not."""
        place = self.table.place or ("servers" if self.workers or self._needs_processes() else "local")
        if self.table.place is None:
            msgspec.structs.force_setattr(self, "table", msgspec.structs.replace(self.table, place=place))
        if not self.workers:
            msgspec.structs.force_setattr(self, "workers", (ALONE if place in ("local", "device") else TWO,))

    def _needs_processes(self) -> bool:
        """Say whether something is named that one process has not."""
        return (
            self.servers is not NO_SERVERS
            or self.faults is not NO_FAULTS
            or bool(self.stages or self.sites)
            or self.training.mode != "sync"
            or self.training.dense == "ring"
            or self.compression.is_wanted
            or self.privacy.aggregation == "masked"
        )

    def with_servers(self) -> Run:
        """Return the run with its rows on servers; where it named no workers, with two."""
        workers = (TWO,) if tuple(self.workers) == (ALONE,) else self.workers
        return msgspec.structs.replace(
            self, workers=workers, table=msgspec.structs.replace(self.table, place="servers", device=None)
        )

    @property
    def is_one_process(self) -> bool:
        """Whether one process trains, and rows lie with it."""
        return self.table.place in ("local", "device")

    def _check_stages(self) -> None:
        """Refuse stages with gaps between them, or that nobody works in."""
        expected = 0
        for number, stage in enumerate(self.stages):
            if stage.first_layer != expected:
                raise SpecError(
                    f"{number} begins with layer {stage.first_layer}, and layer {expected} is next",
                    key="stage",
                    hint="every layer is in exactly one stage, in the order of the layers",
                )
            expected = stage.last_layer + 1
        num_stages, staffed = max(1, len(self.stages)), [worker.stage for worker in self.workers]
        for number in range(num_stages):
            if number not in staffed:
                raise SpecError(f"{number} has no worker", key="stage", hint=f"add a [[worker]] with stage = {number}")
        if beyond := [stage for stage in staffed if stage >= num_stages]:
            raise SpecError(f"has one of stage {beyond[0]}", key="worker", hint=f"the last stage is {num_stages - 1}")

    def _check_ring(self) -> None:
        """Refuse what a ring, whose members keep nothing back, cannot do."""
        bits, topk = self.compression.bits, self.compression.topk
        if topk is not None or bits in ("auto", 2, 1):
            raise SpecError(
                f"is {topk or bits}, and the dense parameters are a ring's",
                key="compression.bits" if topk is None else "compression.topk",
                hint='a ring takes 32, 16, 8 or 4 bits; the others need servers: training.dense = "ps"',
            )

    def _names_hint(self) -> str:
        """Return what to do about two workers of one name: nameless ones are mostly meant to be several of a kind."""
        alike = [worker.count for worker in self.workers if worker.name == "worker"]
        one = f"several alike are one [[worker]] with count = {sum(alike)}; else " if len(alike) > 1 else ""
        return f"{one}give each its own name"

    def _check_sites(self) -> None:
        """Refuse sites that could not train together."""
        here, names = self.exchange.here, [site.name for site in self.sites]
        if not names:
            if here is not None:
                raise SpecError(f'is "{here}", and there are no sites', key="exchange.here", hint="add [[site]]")
            return
        if len(names) < 2 or len(set(names)) < len(names):
            raise SpecError(f"lists {', '.join(names)}", key="site", hint="give two or more, each with its own name")
        if self.sites[0].address is None:
            raise SpecError(
                f"`{names[0]}` is the first and has no address",
                key="site",
                hint='the others call it: address = "HOST:PORT"',
            )
        if here is not None and here not in names:
            raise SpecError(f'is "{here}"', key="exchange.here", hint=did_you_mean(here, names))
        for key, value, wanted in (
            ("training.mode", self.training.mode, "sync"),
            ("training.dense", self.training.dense, "ps"),
            ("table.place", self.table.place, "servers"),
        ):
            if value != wanted:
                raise SpecError(f'is "{value}", and there are sites', key=key, hint=f'with sites it is "{wanted}"')
        if len(self.stages) > 1:
            raise SpecError(
                f"lists {len(self.stages)}, and there are sites", key="stage", hint="sites hold the model uncut"
            )
        if self.faults.replicas:
            raise SpecError(
                f"is {self.faults.replicas}, and there are sites",
                key="faults.replicas",
                hint="with sites there is no redo log: set 0",
            )

    def _check_privacy(self) -> None:
        """Refuse what a run cannot be that promises something about single samples, with the reason."""
        if not self.privacy.is_private:
            return
        for key, value, reason, hint in self._not_private():
            raise SpecError(f"is {value}, and the run is private: {reason}", key=key, hint=hint)

    def _check_masked(self) -> None:
        """Refuse what cannot be added up under masks, with the reason."""
        if self.privacy.aggregation != "masked":
            return
        training, compression = self.training, self.compression
        num_workers = len(self.each_worker())
        for key, is_wrong, value, reason, hint in (
            (
                "training.mode",
                training.mode != "sync",
                f'"{training.mode}"',
                "masks cancel in the sum over all workers of one step",
                'set training.mode = "sync"',
            ),
            (
                "training.dense",
                training.dense != "ps",
                f'"{training.dense}"',
                "in a ring workers see each other's sums",
                'set training.dense = "ps"',
            ),
            (
                "table.place",
                self.table.place != "servers",
                f'"{self.table.place}"',
                "there are no servers to add up what workers send",
                'leave it out, or set table.place = "servers"',
            ),
            ("worker", num_workers < 2, f"{num_workers}", "a sum of one is its gradient", "have two workers or more"),
            (
                "worker",
                num_workers > MOST_MASKED,
                f"{num_workers}",
                "sums of so many have few levels in 32 bits",
                f"have {MOST_MASKED} at most",
            ),
            (
                "compression.bits" if compression.topk is None else "compression.topk",
                compression.is_wanted,
                f"{compression.topk or compression.bits}",
                "what is masked looks random, and cannot be sent in fewer bits",
                "leave it out",
            ),
            (
                "training.tail",
                bool(training.tail),
                f"{training.tail}",
                "a worker's gradients of a step go under one mask, and nobody takes some of another's",
                "leave it out",
            ),
            (
                "training.batch_norm",
                training.batch_norm == "global",
                '"global"',
                "statistics of each worker's samples would go to a server",
                'set training.batch_norm = "own"',
            ),
            (
                "stage",
                len(self.stages) > 1,
                f"a list of {len(self.stages)}",
                "workers of later stages see others' activations, and add up in rings",
                "train the model uncut",
            ),
            (
                "site",
                bool(self.sites),
                f"a list of {len(self.sites)}",
                "sites see what each other's samples changed",
                "use one site",
            ),
        ):
            if is_wrong:
                raise SpecError(f"is {value}, and sums are masked: {reason}", key=key, hint=hint)

    def _not_private(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield key, value, reason and way out of everything that would break the promise, or its accounting."""
        training, compression = self.training, self.compression
        if training.mode != "sync":
            reason = "noise is owed once for each step of a whole batch"
            yield "training.mode", f'"{training.mode}"', reason, 'set training.mode = "sync"'
        if training.dense != "ps":
            reason = "workers of a ring see each other's sums before there is noise in them"
            yield "training.dense", f'"{training.dense}"', reason, 'set training.dense = "ps"'
        if training.accumulate != 1:
            reason = "every batch is drawn by itself, and has its own noise"
            yield "training.accumulate", f"{training.accumulate}", reason, "set a larger training.batch instead"
        if training.compile:
            reason = "a compiled model does not show the gradients of single samples"
            yield "training.compile", "true", reason, "leave it out"
        if not self.data.shuffle:
            reason = "what is counted holds for batches that are drawn by chance"
            yield "data.shuffle", "false", reason, "leave it out"
        for name in ("clip_norm", "clip_value"):
            if (value := getattr(self.optimizer, name)) is not None:
                reason = "the gradient of each sample is clipped, and the sum has noise in it"
                yield f"optimizer.{name}", f"{value:g}", reason, "leave it out; privacy.clip is the limit"
        if compression.is_wanted:
            key = "bits" if compression.topk is None else "topk"
            reason = "what is rounded may be longer than what was clipped"
            yield f"compression.{key}", f"{getattr(compression, key)}", reason, "leave it out"
        yield from self._not_private_where_it_lies()

    def _not_private_where_it_lies(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the same of who works where."""
        for worker in self.workers:
            if worker.precision != "float32":
                reason = "norms in fewer bits do not say how long a gradient is"
                yield "worker.precision", f'"{worker.precision}"', reason, 'set precision = "float32"'
        if self.table.place == "sharded":
            reason = "workers that own rows see each other's gradients before there is noise in them"
            yield "table.place", '"sharded"', reason, 'set table.place = "servers", or "local"'
        if len(self.stages) > 1:
            reason = "no worker has the whole gradient of a sample"
            yield "stage", f"a list of {len(self.stages)}", reason, "train the model uncut"
        if self.sites:
            yield "site", f"a list of {len(self.sites)}", "sites see what each other's samples changed", "use one site"

    @property
    def activation_bits(self) -> int:
        """In how many bits a number travels between stages."""
        bits = self.compression.activations
        return 16 if bits == 32 and self.training.activations == "bfloat16" else bits

    def workers_of(self, stage: int) -> list[tuple[str, RunWorker]]:
        """Return every single worker of a stage with its name."""
        return [(name, worker) for name, worker in self.each_worker() if worker.stage == stage]

    def each_worker(self) -> list[tuple[str, RunWorker]]:
        """Return every single worker with its name."""
        found = []
        for worker in self.workers:
            if worker.count == 1:
                found.append((worker.name, worker))
            else:
                found.extend((f"{worker.name}-{number}", worker) for number in range(worker.count))
        return found


def with_settings(run: Run, settings: Mapping[str, Any], *, place: str) -> Run:
    """Return the run with dotted keys set, such as `training.batch`; `place` is what errors call the source of them.

    Where a run in one process gets workers, servers or what needs them, its rows lie on servers then.
    """
    if run.table.place == "local" and "table.place" not in settings and _names_processes(settings):
        run = run.with_servers()
    return run_from(msgspec.json.decode(msgspec.json.encode(run)), settings, place=place)


def _names_processes(settings: Mapping[str, Any]) -> bool:
    """Say whether dotted keys name what one process has not."""
    flat = {
        f"{key}.{inner}": each
        for key, value in settings.items()
        if isinstance(value, Mapping)
        for inner, each in value.items()
    }
    return any(
        key == "worker"
        or key.split(".")[0] in ("servers", "stage", "site", "compression", "faults")
        or (key == "training.mode" and value != "sync")
        or (key == "privacy.aggregation" and value == "masked")
        or (key == "training.dense" and value == "ring")
        for key, value in {**settings, **flat}.items()
    )


def run_from(table: Mapping[str, Any], settings: Mapping[str, Any], *, place: str) -> Run:
    """Return the run that a plain table describes, with dotted keys set."""
    whole = copy.deepcopy(dict(table))
    for key, value in settings.items():
        _set(whole, key, value, place=place)
    return struct_from(whole, Run, file=place)


def _set(table: dict[str, Any], key: str, value: Any, *, place: str) -> None:
    """Set a dotted key; a number in it is a position in a list."""
    *path, last = key.split(".")
    inner: Any = table
    for word in path:
        inner = _step(inner, word, key, place)
    if isinstance(inner, list):
        _step(inner, last, key, place)
        inner[int(last)] = value
    elif isinstance(inner, dict):
        inner[last] = value
    else:
        raise SpecError("is not a known key", key=key, hint=f"`{'.'.join(path)}` is no table", file=place)


def _step(inner: Any, word: str, key: str, place: str) -> Any:
    """Return what lies one word further in."""
    if isinstance(inner, dict):
        return inner.setdefault(word, {})
    if isinstance(inner, list):
        if word.isdigit() and int(word) < len(inner):
            return inner[int(word)]
        raise SpecError(
            f"has no entry `{word}`", key=key, hint=f"entries go from 0 to {len(inner) - 1}, e.g. worker.0", file=place
        )
    raise SpecError("is not a known key", key=key, hint=f"there is nothing inside `{word}`", file=place)


def parse_setting(word: str, *, example: str = "--set training.tail=0.1") -> tuple[str, Any]:
    """Return `training.tail=0.1` as its key and value."""
    key, equals, text = word.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"`{word}` sets nothing", hint=f"write KEY=VALUE, e.g. {example}")
    return key.strip(), parse_value(text)


def parse_value(text: str) -> Any:
    """Return what a command line says: TOML where it is that, else a list where commas part it, else the text itself.

    `a,b` and `["a", "b"]` are the same list, and `a,` is a list of one; a comma alone is text.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        parts = [part.strip() for part in text.split(",")]
        return [parse_value(part) for part in parts if part] if len(parts) > 1 and any(parts) else text.strip()
    return text.strip() if isinstance(value, dt.date | dt.time) else value


def dotted_key(name: str) -> str:
    """Return the dotted key of a setting given by its last word: `tail` is `training.tail`."""
    known: dict[str, str] = {}
    for field in msgspec.structs.fields(Run):
        known.setdefault(field.encode_name, field.encode_name)
    for section in SECTIONS_SEARCHED:
        kind: Any = next(field.type for field in msgspec.structs.fields(Run) if field.name == section)
        for inner in msgspec.structs.fields(kind):
            if inner.name in ("name", "options"):
                continue  # of what?
            known.setdefault(inner.encode_name, f"{section}.{inner.encode_name}")
    if name not in known:
        raise SpecError("is not a setting of a run", key=name, hint=did_you_mean(name, known))
    return known[name]
