"""What every process of a run needs to know: the run file with all defaults filled in, sizes, names and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dovetail.encryption import keep_encrypted, key_file_of
from dovetail.privacy.steps import PrivateSteps
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import BLUEPRINT
from dovetail.runtime.sealed import read_sealed, write_sealed
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunSite, portions


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding table: the module it stands for, and its shape."""

    name: str
    width: int
    num_rows: int
    scale: float
    padding: int | None = None
    """The key whose row is zeros, and never trained."""
    max_norm: float | None = None
    """What rows are scaled down to before they are used."""
    norm_type: float = 2.0


class DenseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A dense parameter: where it lies in the one vector of all of them."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        total = 1
        for length in self.shape:
            total *= length
        return total


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A server's name and the addresses it listens on: for other hosts, and for processes on its own."""

    name: str
    address: str
    local_address: str


class StageWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that hold a stage of the run, which others call; its layers are in `run.stages`."""

    workers: tuple[ServerSpec, ...] = ()
    """None of the first stage, which nobody calls."""
    has_dense: bool = True
    """Whether it has dense parameters."""


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A site's part of the data: of every `batch` positions of an epoch those from `first` up to `last`.

    Of what is left at the end of an epoch it has the same part.
    """

    samples: int
    """Of one epoch, over all sites."""
    batch: int
    first: int
    last: int

    @property
    def own_batch(self) -> int:
        """Return how many positions of a whole batch are its own."""
        return self.last - self.first

    @property
    def own_samples(self) -> int:
        """Return how many samples of an epoch are its own."""
        first, last = self._rest
        return self.samples // self.batch * self.own_batch + last - first

    @property
    def _rest(self) -> tuple[int, int]:
        """Return its part of the last batch of an epoch, which is not whole."""
        rest = self.samples % self.batch
        return rest * self.first // self.batch, rest * self.last // self.batch

    def samples_after(self, steps: int) -> int:
        """Return how many of its samples so many steps have seen, over epochs."""
        epochs, steps = divmod(steps, self.steps)
        return epochs * self.own_samples + min(steps * self.own_batch, self.own_samples)

    @property
    def steps(self) -> int:
        """Return how many steps of its own an epoch has."""
        return -(-self.own_samples // self.own_batch)

    def places(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return where its own positions from `first` up to `last` lie among those of all, as ranges."""
        found, whole, rest = [], self.samples // self.batch, self._rest
        while first < last:
            number, within = divmod(first, self.own_batch)
            number, within = (whole, first - whole * self.own_batch) if number >= whole else (number, within)
            room = (rest[1] - rest[0] if number == whole else self.own_batch) - within
            count = min(last - first, room)
            begin = number * self.batch + (rest[0] if number == whole else self.first) + within
            found.append((begin, begin + count))
            first += count
        return found


def portions_of(sites: Sequence[RunSite], samples: int, batch: int) -> list[Portion]:
    """Return the part of each site: together they are every sample once."""
    found, first = [], 0
    for own in portions(sites, batch):
        found.append(Portion(samples=samples, batch=batch, first=first, last=first + own))
        first += own
    return found


class SourceFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What data and code are known by, from a look at them."""

    version: str = ""
    """Of Dovetail."""
    numbers: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """The columns of the data, and further fields."""
    num_samples: int | None = None
    """Of the data; None where they have no end."""
    first: str = ""
    """A checksum of the first few samples, to the last bit; empty where they could not be read."""
    ids: str = ""
    """A checksum of the ids of some samples at the beginning, in the middle and at the end of an epoch."""
    total: float = 0.0
    """The sum of their numbers and labels, which machines round differently."""
    parts: str = ""
    """A checksum of where the data's parts begin; empty where the order does not depend on that."""
    code: dict[str, str] = {}
    """A checksum of the file behind each `package.module:function`."""

    def columns(self) -> dict[str, list[str]]:
        """Return the columns as options of data, those kinds that there are."""
        kinds = {"dense": self.numbers, "slots": self.slots, "fields": self.fields}
        return {kind: list(names) for kind, names in kinds.items() if names}


class Blueprint(msgspec.Struct, frozen=True, kw_only=True):
    """A run, ready to be started."""

    run: Run
    id: str = ""
    """What logs, figures and timelines of all its processes call the run: the daemon's job, where it is one."""
    tables: tuple[TableSpec, ...]
    dense: tuple[DenseEntry, ...]
    samples: int
    """Of one epoch."""
    batch: int
    optimizer: dict[str, str | float]
    row_optimizer: dict[str, str | float]
    metrics: tuple[str, ...] = ()
    """What the model is judged by, while it trains and in an evaluation; all by name."""
    coordinator: ServerSpec
    servers: tuple[ServerSpec, ...]
    own_loss: str = ""
    """What the loss is called where it is an object of a Python program."""
    flops: float | None = None
    """Of a forward pass, a sample; None where nobody knows."""
    timeline: bool = False
    """Whether every worker's spans are kept."""
    fixed: str = ""
    """A checksum of the file of frozen parameters and buffers; empty where there is none."""
    lanes: str | None
    """The folder of shared memory; None where there is none."""
    first_seed: int | None = None
    """Of first values, where a run goes on with another order than it began with."""
    stages: tuple[StageWorkers, ...] = ()
    """Where the model is cut; none where every worker holds all of it."""
    looks: SourceFingerprint = SourceFingerprint()
    """Of the data and the code that the run began with."""
    portion: Portion | None = None
    """Which of the data are this site's, where there are several."""
    population: int | None = None
    """Samples that each step of a private run draws from; `samples` counts positions there, a whole batch each step."""
    private: PrivateSteps | None = None
    """What each step owes, where the run is private."""

    @property
    def all_samples(self) -> int:
        """Return the samples of one epoch over all sites: what comes after them in the data was held out."""
        if self.population is not None:
            return self.population
        return self.samples if self.portion is None else self.portion.samples

    @property
    def values_seed(self) -> int:
        """Return the seed of first values."""
        return self.run.training.seed if self.first_seed is None else self.first_seed

    @property
    def private_folder(self) -> Path:
        """Return the folder of sockets and shared memory on the servers' host."""
        return Path(self.coordinator.local_address.removeprefix("ipc://")).parent

    @property
    def dense_size(self) -> int:
        """Return how many dense parameters there are."""
        return self.dense[-1].offset + self.dense[-1].size if self.dense else 0

    @property
    def stage_workers(self) -> dict[str, ServerSpec]:
        """Return the workers of stages after the first, which others call, by name."""
        return {spec.name: spec for stage in self.stages for spec in stage.workers}

    @property
    def num_servers(self) -> int:
        """Return how many servers there are."""
        return len(self.servers)

    @property
    def mask_reach(self) -> float:
        """Return the largest number that a worker's sum of gradients has under masks: more is cut.

        What a number of one sample's gradient may be, times the samples of a step.
        """
        privacy = self.run.privacy
        return (privacy.mask_range or privacy.clip or 1.0) * self.batch

    def dense_slice(self, server: int) -> slice:
        """Return the part of the dense vector that a server keeps."""
        return dense_slice(self.dense_size, server, self.num_servers)

    def write(self, folder: Path) -> None:
        """Write the blueprint into the run's folder, in the place of an older one where there is one."""
        write_sealed(folder / BLUEPRINT, self)

    @classmethod
    def read(cls, folder: Path) -> Blueprint:
        """Return the blueprint in a run's folder, or say why there is none to be had.

        From then on, where the run is kept encrypted, this process reads and writes its files with its key.
        """
        path = folder / BLUEPRINT
        if not path.exists():
            raise TrainingError(
                f"{folder} is no run: it has no {BLUEPRINT}", hint="give the folder that `dovetail train` wrote"
            )
        blueprint = read_sealed(
            path,
            cls,
            hint=f"the checkpoints may be whole: give the run file anew, dovetail train RUN.toml --resume {folder}",
        )
        keep_run_encrypted(folder, blueprint.run, given=False)
        given = key_file_of(folder)
        if given is None or str(given) == blueprint.run.checkpoint.key_file:
            return blueprint
        saving = msgspec.structs.replace(blueprint.run.checkpoint, key_file=str(given))
        return msgspec.structs.replace(blueprint, run=msgspec.structs.replace(blueprint.run, checkpoint=saving))


def keep_run_encrypted(folder: Path, run: Run, *, given: bool) -> None:
    """Have a run's files encrypted with its key, wherever they lie; see `keep_encrypted` on what is `given`."""
    for place in (folder, run.servers.folder, run.faults.log_folder):
        if place is not None:
            keep_encrypted(place, run.checkpoint.key_file, given=given)


def dense_slice(size: int, server: int, num_servers: int) -> slice:
    """Return the part of a vector of `size` numbers that a server keeps: equal parts, in order."""
    return slice(size * server // num_servers, size * (server + 1) // num_servers)


def table_seed(seed: int, position: int) -> int:
    """Return the seed of a table's first values: unlike tables of one run begin unlike."""
    return seed * 1_000_003 + position
