"""The sections of a run file, each with its checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number, check_whole_number

Meta = msgspec.Meta

Place = Literal["local", "servers", "sharded", "device"]
PROCESS_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""A name that is a file's as well: of a log, of a key."""
OTHERS = re.compile(r"coordinator|launcher|server-[0-9]+", re.IGNORECASE)
"""What the other processes of a run are called; some disks take capitals for small letters."""
Bits = Literal["auto", 32, 16, 8, 4, 2, 1]
ActivationBits = Literal[32, 16, 8, 4]
HERE = "127.0.0.1"
LogFormat = Literal["text", "json"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: unknown keys are errors."""


class RunStage(Section, frozen=True):
    """A run of consecutive layers, as in a plan."""

    first_layer: Annotated[int, Meta(description="the position of the stage's first layer, from 0")]
    last_layer: Annotated[int, Meta(description="the position of the stage's last layer, itself included")]
    resource: Annotated[str, Meta(description="the type that a plan puts it on")] = ""

    def __post_init__(self) -> None:
        """Refuse a stage without layers."""
        check_whole_number(self, "first_layer", at_least=0)
        check_whole_number(self, "last_layer", at_least=self.first_layer)


class RunTable(Section, frozen=True):
    """Where the rows of embedding tables lie: with the one process that trains, on servers, or over the workers."""

    place: Annotated[
        Place | None,
        Meta(
            description="local: with the one process that trains, in the memory of its GPU, in host memory and on "
            "disk; servers; sharded: over the workers; device: the old word for local on a GPU; absent: local, or "
            "servers where workers, servers or what needs them are named"
        ),
    ] = None
    device: Annotated[
        str | None,
        Meta(description='with local: where layers are, "cuda", "cuda:1" or "cpu"; absent: a GPU where there is one'),
    ] = None
    threads: Annotated[
        int | None, Meta(description="with local: threads that compute; absent: those of [[worker]], or one a core")
    ] = None
    device_bytes: Annotated[
        int, Meta(description="with a GPU: memory for rows there, over all tables; host memory is servers.host_bytes")
    ] = 1 << 30
    layer_bytes: Annotated[
        dict[str, int],
        Meta(description="with a GPU: memory for rows of a layer's table, by its name; others share the rest evenly"),
    ] = msgspec.field(default_factory=dict)
    look_ahead: Annotated[
        int, Meta(description="with local: batches that are read, and their rows brought, before they are trained on")
    ] = 16
    graph: Annotated[
        bool, Meta(description="with local on CUDA: steps are captured as a CUDA graph where the model allows it")
    ] = True

    def __post_init__(self) -> None:
        """Refuse no memory, no threads, and no batches."""
        if self.threads is not None:
            check_whole_number(self, "threads", at_least=1)
        check_whole_number(self, "device_bytes", at_least=1)
        check_whole_number(self, "look_ahead", at_least=1)
        for name, rows_bytes in self.layer_bytes.items():
            if not 1 <= rows_bytes <= self.device_bytes:
                raise SpecError(
                    f"is {rows_bytes}, and device_bytes is {self.device_bytes}",
                    key=f"layer_bytes.{name}",
                    hint="give at least 1, and no more than device_bytes has for all",
                )


def check_worker_name(name: str) -> None:
    """Refuse a name that is no file's, or that another process of every run has."""
    if not PROCESS_NAME.fullmatch(name):
        raise SpecError(
            f'has one called "{name}"',
            key="worker",
            hint="a name is of letters, digits, `_`, `-` and `.`, at most 64, and does not begin with `.`",
        )
    if OTHERS.fullmatch(name):
        raise SpecError(
            f'has one called "{name}"',
            key="worker",
            hint="`coordinator`, `launcher` and `server-N` are other processes of the run; choose another name",
        )


class RunSchedule(Section, frozen=True):
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


class RunGroup(Section, frozen=True):
    """Dense parameters, by the names they have in the model."""

    pattern: Annotated[str, Meta(description="of names, with * and ?, e.g. *.bias")]
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the optimizer's")] = None
    settings: Annotated[dict[str, float], Meta(description="on top of the optimizer's, e.g. { weight_decay = 0 }")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        """Refuse no pattern, and a rate that is not above zero."""
        if not self.pattern.strip():
            raise SpecError("is empty", key="pattern", hint='name parameters, e.g. "*.bias"')
        if self.learning_rate is not None:
            check_number(self, "learning_rate", above=0.0)


class RunOptimizer(Section, frozen=True):
    """What updates the parameters, on the servers."""

    name: Annotated[
        str | None,
        Meta(description="of dense parameters: sgd, momentum, adagrad, adam, adamw; absent: the model's own"),
    ] = None
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the model's own")] = None
    rows: Annotated[
        str | None,
        Meta(
            description="of embedding rows: sgd, adagrad, row-wise-adagrad, adam, adam-per-row, ftrl; absent: as `name`"
        ),
    ] = None
    rows_learning_rate: Annotated[float | None, Meta(description="of embedding rows; absent: learning_rate")] = None
    settings: Annotated[
        dict[str, float], Meta(description="of the dense one, e.g. { beta1 = 0.9, beta2 = 0.98, weight_decay = 0.1 }")
    ] = msgspec.field(default_factory=dict)
    rows_settings: Annotated[dict[str, float], Meta(description="of that of rows, e.g. { first_sum = 0.1 }")] = (
        msgspec.field(default_factory=dict)
    )
    groups: Annotated[
        tuple[RunGroup, ...],
        Meta(description="dense parameters with settings of their own; the first that fits counts"),
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


class RunSaving(Section, frozen=True):
    """When the state of the run is kept; it always is at the end."""

    every_steps: Annotated[int | None, Meta(description="steps (in ssp and async: tasks) from one to the next")] = None
    every_s: Annotated[float | None, Meta(description="seconds from one to the next, as well")] = 300.0
    keep: Annotated[int, Meta(description="how many of the newest are kept, at least 1")] = 3
    key_file: Annotated[
        str | None,
        Meta(
            description="a key of `dovetail keygen`: rows, parameters and data that the run keeps on disk are "
            "encrypted with it; absent: they are not"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.every_steps is not None:
            check_whole_number(self, "every_steps", at_least=1)
        if self.every_s is not None:
            check_number(self, "every_s", above=0.0)
        check_whole_number(self, "keep", at_least=1)


class RunValidation(Section, frozen=True):
    """Data that are not trained on, and when the model is tried on them; absent, it is not."""

    name: Annotated[str | None, Meta(description="data as in [data]; absent: those of the run")] = None
    options: Annotated[
        dict[str, Any], Meta(description="options of these data, on top of the run's where they are of one name")
    ] = msgspec.field(default_factory=dict)
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


class RunCompression(Section, frozen=True):
    """In how many bits numbers travel; absent, in 32, as they are."""

    bits: Annotated[
        Bits,
        Meta(
            description="a number of gradients between workers and servers, or around a ring: 32, 16, 8, 4, 2, 1, or "
            "auto (as many as still hide behind computing, by what is measured on each link)"
        ),
    ] = 32
    topk: Annotated[
        float | None,
        Meta(description="in the place of bits: the part of a dense gradient that goes, its largest numbers, 0 to 1"),
    ] = None
    activations: Annotated[
        ActivationBits,
        Meta(description="a number between stages: 32, 16 (as bfloat16), 8 or 4 (rounded by chance, unbiased)"),
    ] = 32

    def __post_init__(self) -> None:
        """Refuse no numbers at all, and two ways at once."""
        if self.topk is not None:
            check_number(self, "topk", above=0.0, at_most=1.0)
            if self.bits != 32:
                raise SpecError(f"is {self.topk:g}, and bits is {self.bits}", key="topk", hint="choose one of them")

    @property
    def is_wanted(self) -> bool:
        """Whether gradients travel in another way than as they are."""
        return self.bits != 32 or self.topk is not None


class RunFaults(Section, frozen=True):
    """What happens when processes die."""

    restarts: Annotated[int, Meta(description="how often each process is started again, at least 0")] = 100
    restart_workers: Annotated[bool, Meta(description="whether dead workers are started again")] = True
    patience_s: Annotated[float, Meta(description="the least silence after which a process counts as lost")] = 10.0
    redo_log: Annotated[
        bool,
        Meta(description="whether servers keep what they did since the last checkpoint: a death costs no step"),
    ] = True
    log_bytes: Annotated[
        int,
        Meta(
            description="how large each server's redo log may get, and no more than half of the free disk; "
            "a checkpoint is made before it is full"
        ),
    ] = 8 << 30
    log_folder: Annotated[str | None, Meta(description="where redo logs go; absent: inside the run's folder")] = None
    replicas: Annotated[
        int, Meta(description="on how many other servers each redo log lies as well, 0 or 1: a lost disk costs no step")
    ] = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_whole_number(self, "restarts", at_least=0)
        check_number(self, "patience_s", above=0.0)
        check_whole_number(self, "log_bytes", at_least=1 << 20)
        check_whole_number(self, "replicas", at_least=0)
        if self.replicas > 1:
            raise SpecError(f"is {self.replicas}, expected 0 or 1", key="replicas", hint="one copy is kept at most")
        if self.replicas and not self.redo_log:
            raise SpecError(
                f"is {self.replicas}, and redo_log = false", key="replicas", hint="it is the redo log that is copied"
            )


class RunLog(Section, frozen=True):
    """What programs that watch a run are told."""

    metrics: Annotated[
        str | int | None,
        Meta(description='where Prometheus finds figures at /metrics: a port of this machine, or "HOST:PORT"; 0: any'),
    ] = None
    format: Annotated[
        LogFormat | None,
        Meta(description="of logs: text, or json (an object a line); absent: what DOVETAIL_LOG says, else text"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        if self.metrics is not None:
            self.metrics_address()

    def metrics_address(self) -> tuple[str, int]:
        """Return host and port of the page of figures."""
        host, _, port = str(self.metrics).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise SpecError(f'is "{self.metrics}"', key="metrics", hint='give a port, or "HOST:PORT", e.g. 9100')
        return host.strip("[]") or HERE, int(port)


ExchangeBits = Literal[32, 16, 8, 4, 2, 1]
SITE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
ADDRESS = re.compile(r"[^\s:/]+:[0-9]{1,5}")


class RunSite(Section, frozen=True):
    """A site: a data centre that trains its part of the data with servers and workers of its own."""

    name: Annotated[str, Meta(description="the site's name")]
    address: Annotated[
        str | None,
        Meta(
            description="HOST:PORT where the others reach its first server, the next at PORT + 1; the first site "
            "needs one, any other may have one, and then gives what it keeps to sites that come back"
        ),
    ] = None
    share: Annotated[int, Meta(description="its part of every batch, against those of the others, at least 1")] = 1

    def __post_init__(self) -> None:
        """Refuse names that are no files', and no share."""
        check_name(self)
        check_whole_number(self, "share", at_least=1)
        if not SITE_NAME.fullmatch(self.name):
            raise SpecError(
                f'is "{self.name}"', key="name", hint="use letters, digits, `_`, `-` and `.`, at most 64 of them"
            )
        if self.address is not None and not ADDRESS.fullmatch(self.address):
            raise SpecError(f'is "{self.address}"', key="address", hint='write HOST:PORT, e.g. "10.0.0.1:7000"')


class RunExchange(Section, frozen=True):
    """How sites bring each other up to date."""

    here: Annotated[str | None, Meta(description="which of the sites this one is; --site says it too")] = None
    every: Annotated[
        int | Literal["auto"],
        Meta(description="steps between two exchanges; auto: as few as hide the transfers, by what is measured"),
    ] = "auto"
    bits: Annotated[
        ExchangeBits, Meta(description="in which a number of what changed travels: 32, 16, 8, 4, 2 or 1")
    ] = 8
    outer_rate: Annotated[float, Meta(description="of the outer optimizer of dense parameters, its learning rate")] = (
        1.0
    )
    outer_momentum: Annotated[float, Meta(description="and Nesterov's momentum, 0 to 1 (not included)")] = 0.0
    ahead: Annotated[
        int, Meta(description="exchanges that may be on their way while training goes on; 0: it waits for each")
    ] = 1
    wait_s: Annotated[float, Meta(description="how long a site that is silent is waited for")] = 30.0
    end_wait_s: Annotated[float, Meta(description="and at the end of training, where the last exchange is due")] = 600.0
    keys: Annotated[str, Meta(description="the folder with the sites' keys, as `dovetail site-keys` makes it")] = (
        "site-keys"
    )

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.every != "auto":
            check_whole_number(self, "every", at_least=1)
        check_number(self, "outer_rate", above=0.0)
        check_number(self, "outer_momentum", at_least=0.0, at_most=0.9999)
        check_whole_number(self, "ahead", at_least=0)
        check_number(self, "wait_s", above=0.0)
        check_number(self, "end_wait_s", above=0.0)
        if self.every == "auto" and self.ahead == 0:
            raise SpecError(
                'is "auto", and ahead is 0: nothing hides a transfer that is waited for',
                key="every",
                hint="set exchange.ahead = 1, or exchange.every to a number of steps",
            )


def portions(sites: Sequence[RunSite], batch: int) -> list[int]:
    """Return each site's part of a batch; refuse one that cannot be divided so."""
    total = sum(site.share for site in sites)
    if any(batch * site.share % total for site in sites):
        raise SpecError(
            f"is {batch}, which {len(sites)} sites cannot share by {':'.join(str(site.share) for site in sites)}",
            key="training.batch",
            hint=f"choose a multiple of {total}, e.g. {max(1, round(batch / total)) * total}",
        )
    return [batch * site.share // total for site in sites]
