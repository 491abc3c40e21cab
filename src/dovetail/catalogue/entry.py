"""One type of the catalogue: what a cloud rents out under one name, and for how much."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from dovetail.catalogue.data_sheets import Chip, bus_of, chip_of
from dovetail.errors import SpecError
from dovetail.spec import ResourceType
from dovetail.spec.checks import check_name, check_number, check_whole_number, field_hint, show
from dovetail.spec.resource import Kind

Precision = Literal["fp32", "tf32", "bf16"]

_ID = re.compile(r"[^\s:]+:\S+")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_OPTIONAL_AMOUNTS = (
    "vcpus",
    "memory_bytes",
    "accelerator_memory_bytes",
    "fp32_flops_per_s",
    "tf32_flops_per_s",
    "bf16_flops_per_s",
    "memory_bytes_per_s",
    "bus_bytes_per_s",
    "network_bytes_per_s",
    "spot_usd_per_hour",
)


class CatalogueEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A type with its price and its data sheet; one unit is one instance as rented, all its accelerators included.

    What is not known is None. Peaks are dense, and sums over the accelerators of the unit, as is the bandwidth.
    """

    id: Annotated[str, Meta(description='the cloud and its word for the type, e.g. id = "aws:g5.xlarge"')]
    kind: Annotated[Kind, Meta(description='"cpu", "gpu" or "other"')]
    on_demand_usd_per_hour: Annotated[float, Meta(description="the price of one unit that stays until given back")]
    spot_usd_per_hour: Annotated[
        float | None, Meta(description="the price of one unit that the cloud may take back at any time")
    ] = None
    cloud: Annotated[str, Meta(description="the part of the id before the colon; may be left out")] = ""
    instance: Annotated[str, Meta(description="the part of the id after the colon; may be left out")] = ""
    region: Annotated[str | None, Meta(description='where the prices hold, e.g. region = "us-east-1"')] = None
    vcpus: Annotated[float | None, Meta(description="how many virtual CPUs one unit has, e.g. vcpus = 4")] = None
    memory_bytes: Annotated[
        float | None, Meta(description="the memory of the host, e.g. memory_bytes = 17_179_869_184 (16 GiB)")
    ] = None
    accelerator: Annotated[str | None, Meta(description='the name of the chip, e.g. accelerator = "A10G"')] = None
    num_accelerators: Annotated[int, Meta(description="how many accelerators one unit has; 0 for a CPU")] = 0
    accelerator_memory_bytes: Annotated[
        float | None, Meta(description="the memory of each accelerator, e.g. accelerator_memory_bytes = 24e9")
    ] = None
    fp32_flops_per_s: Annotated[
        float | None, Meta(description="dense fp32 peak of one unit, e.g. fp32_flops_per_s = 35e12")
    ] = None
    tf32_flops_per_s: Annotated[float | None, Meta(description="dense tf32 peak of one unit, where it has tf32")] = None
    bf16_flops_per_s: Annotated[float | None, Meta(description="dense bf16 peak of one unit, where it has bf16")] = None
    memory_bytes_per_s: Annotated[
        float | None, Meta(description="peak bandwidth of the memory the unit computes in, e.g. 600e9")
    ] = None
    bus_bytes_per_s: Annotated[
        float | None, Meta(description="from the host's memory to the accelerators, one way, over all of one unit")
    ] = None
    network_bytes_per_s: Annotated[
        float | None, Meta(description="the lasting rate of the unit's network, e.g. network_bytes_per_s = 12.5e9")
    ] = None
    host_included: Annotated[
        bool, Meta(description="false where the price is of the accelerators alone and the machine is billed besides")
    ] = True
    prices_as_of: Annotated[
        str | None, Meta(description='the month or day of the prices, e.g. prices_as_of = "2026-08"')
    ] = None
    prices_source: Annotated[str | None, Meta(description="where the prices come from, in words")] = None

    def __post_init__(self) -> None:
        """Refuse what no cloud rents out; take the cloud and the instance from the id."""
        _check_id(self)
        check_number(self, "on_demand_usd_per_hour", above=0)
        for name in _OPTIONAL_AMOUNTS:
            if getattr(self, name) is not None:
                check_number(self, name, above=0)
        for name in ("region", "accelerator", "prices_source"):
            if getattr(self, name) is not None:
                check_name(self, name)
        _check_accelerators(self)
        check_date(self)

    @property
    def unit_memory_bytes(self) -> float | None:
        """The memory that computation has on one unit: all accelerators' together, or the host's without any."""
        if self.num_accelerators == 0:
            return self.memory_bytes
        if self.accelerator_memory_bytes is None:
            return None
        return self.num_accelerators * self.accelerator_memory_bytes

    def flops_per_s(self, precision: Precision = "fp32") -> float | None:
        """Return the dense peak of one unit at a precision; fp32 is what training does unless told otherwise."""
        known = {"fp32": self.fp32_flops_per_s, "tf32": self.tf32_flops_per_s, "bf16": self.bf16_flops_per_s}[precision]
        if known is None and precision == "fp32" and self.chip is not None and self.vcpus is not None:
            return self.chip.flops_per_s(self.vcpus)
        return known

    @property
    def chip(self) -> Chip | None:
        """The processor of a CPU type, where it is known."""
        return chip_of(self.id) if self.kind == "cpu" else None

    @property
    def cores(self) -> float | None:
        """How many cores a CPU type has, where its processor is known."""
        return None if self.chip is None or self.vcpus is None else self.chip.cores(self.vcpus)

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """The bandwidth of the memory the unit computes in; of a CPU type, its share of the processor's."""
        if self.memory_bytes_per_s is None and self.chip is not None and self.vcpus is not None:
            return self.chip.memory_bytes_per_s(self.vcpus)
        return self.memory_bytes_per_s

    @property
    def host_bus_bytes_per_s(self) -> float | None:
        """The rate at which the unit's accelerators read the host's memory; by their names where it is not given."""
        if self.bus_bytes_per_s is not None or self.accelerator is None:
            return self.bus_bytes_per_s
        rate = bus_of(self.accelerator)
        return None if rate is None else rate * self.num_accelerators

    def price_per_hour(self, spot: bool = False) -> float:
        """Return USD for one unit and hour, at the on-demand or the spot price."""
        if not spot:
            return self.on_demand_usd_per_hour
        if self.spot_usd_per_hour is None:
            raise SpecError(
                f'"{self.id}" has no spot price',
                hint="take its on-demand price, or give spot_usd_per_hour in a catalogue file of your own",
            )
        return self.spot_usd_per_hour

    def to_resource(self, name: str | None = None, spot: bool = False, limit: int | None = None) -> ResourceType:
        """Return the type as problems have it, by the name of the instance unless another is given."""
        return ResourceType(
            name=self.instance if name is None else name,
            price_per_hour=self.price_per_hour(spot),
            kind=self.kind,
            limit=limit,
            memory_bytes=self.unit_memory_bytes,
            flops_per_s=self.flops_per_s(),
            memory_bytes_per_s=self.bandwidth_bytes_per_s,
        )


def check_date(owner: Struct) -> None:
    """Refuse a `prices_as_of` that is neither a month nor a day."""
    value = getattr(owner, "prices_as_of", None)
    if value is not None and not _DATE.fullmatch(value):
        raise SpecError(
            f"is {show(value)}, expected a month or a day",
            key="prices_as_of",
            hint=field_hint(type(owner), "prices_as_of"),
        )


def _check_id(entry: CatalogueEntry) -> None:
    """Refuse an id without cloud or instance, and a cloud or instance that says otherwise than the id."""
    if not _ID.fullmatch(entry.id):
        raise SpecError(
            f"is {show(entry.id)}, expected cloud:instance", key="id", hint=field_hint(CatalogueEntry, "id")
        )
    cloud, _, instance = entry.id.partition(":")
    for name, part in (("cloud", cloud), ("instance", instance)):
        given = getattr(entry, name)
        if given not in ("", part):
            raise SpecError(
                f'is "{given}", but the id "{entry.id}" says "{part}"',
                key=name,
                hint=field_hint(CatalogueEntry, name),
            )
        force_setattr(entry, name, part)


def _check_accelerators(entry: CatalogueEntry) -> None:
    """Refuse accelerators without name or number, a cpu that has some, and a gpu that has none."""
    check_whole_number(entry, "num_accelerators", at_least=0)
    has_some = entry.num_accelerators > 0
    if entry.kind == "cpu" and has_some:
        raise SpecError(
            f"is {entry.num_accelerators} on a cpu, expected 0",
            key="num_accelerators",
            hint='set kind = "gpu" or kind = "other"',
        )
    if entry.kind == "gpu" and not has_some:
        raise SpecError(
            "is 0 on a gpu, expected at least 1",
            key="num_accelerators",
            hint=field_hint(CatalogueEntry, "num_accelerators"),
        )
    if has_some and entry.accelerator is None:
        raise SpecError("is missing", key="accelerator", hint=f"add it: {field_hint(CatalogueEntry, 'accelerator')}")
    for name in ("accelerator", "accelerator_memory_bytes"):
        if not has_some and getattr(entry, name) is not None:
            raise SpecError(
                "is given, but num_accelerators is 0",
                key=name,
                hint=field_hint(CatalogueEntry, "num_accelerators"),
            )
