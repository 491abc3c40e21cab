"""What every process of a run needs to know: the run file with all defaults filled in, sizes, names and addresses."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dovetail.runtime.folder import BLUEPRINT
from dovetail.spec.run import Run


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding table: the module it stands for, and its shape."""

    name: str
    width: int
    num_rows: int
    scale: float


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


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What data and code are known by."""

    version: str
    """Of Dovetail."""
    dense: tuple[str, ...]
    slots: tuple[str, ...]
    fields: tuple[str, ...] = ()
    """Further fields."""
    num_samples: int | None
    """Of the data; None where they have no end."""
    keys: str
    """A checksum of the ids of some samples."""
    numbers: float
    """The sum of their numbers and labels."""
    code: dict[str, str]
    """A checksum of the file behind each `package.module:function`."""


class Blueprint(msgspec.Struct, frozen=True, kw_only=True):
    """A run, ready to be started."""

    run: Run
    tables: tuple[TableSpec, ...]
    dense: tuple[DenseEntry, ...]
    samples: int
    """Of one epoch."""
    batch: int
    optimizer: dict[str, str | float]
    row_optimizer: dict[str, str | float]
    metric: str
    coordinator: ServerSpec
    servers: tuple[ServerSpec, ...]
    timeline: bool = False
    """Whether every worker's spans are kept."""
    fingerprint: Fingerprint | None = None
    """Of the data and the code that the run began with."""
    lanes: str | None
    """The folder of shared memory; None where there is none."""

    @property
    def dense_size(self) -> int:
        """Return how many dense parameters there are."""
        return self.dense[-1].offset + self.dense[-1].size if self.dense else 0

    @property
    def num_servers(self) -> int:
        """Return how many servers there are."""
        return len(self.servers)

    def dense_slice(self, server: int) -> slice:
        """Return the part of the dense vector that a server keeps."""
        return dense_slice(self.dense_size, server, self.num_servers)

    def write(self, folder: Path) -> None:
        """Write the blueprint into the run's folder."""
        (folder / BLUEPRINT).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Blueprint:
        """Return the blueprint in a run's folder."""
        return msgspec.json.decode((folder / BLUEPRINT).read_bytes(), type=cls)


def dense_slice(size: int, server: int, num_servers: int) -> slice:
    """Return the part of a vector of `size` numbers that a server keeps: equal parts, in order."""
    return slice(size * server // num_servers, size * (server + 1) // num_servers)


def table_seed(seed: int, position: int) -> int:
    """Return the seed of a table's first values: unlike tables of one run begin unlike."""
    return seed * 1_000_003 + position
