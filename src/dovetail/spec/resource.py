"""Kinds of compute that can be rented by the unit."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.spec.checks import check_name, check_number, check_whole_number

UNITS_WITHOUT_LIMIT = 1_000_000
"""How many units of a type there are to be had where no limit is given."""

Kind = Literal["cpu", "gpu", "other"]


class ResourceType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of compute, such as a CPU core or a V100; its fields carry their units."""

    name: Annotated[str, Meta(description='the word that layers and links use for this type, e.g. name = "v100"')]
    price_per_hour: Annotated[float, Meta(description="in USD per unit and hour, e.g. price_per_hour = 2.42")]
    kind: Annotated[Kind | None, Meta(description='"cpu", "gpu" or "other"')] = None
    limit: Annotated[
        int | None, Meta(description="how many units there are to be had, e.g. limit = 32; leave it out for no limit")
    ] = None
    memory_bytes: Annotated[float | None, Meta(description="the memory of one unit, e.g. memory_bytes = 16e9")] = None
    flops_per_s: Annotated[float | None, Meta(description="peak floating-point operations per second of one unit")] = (
        None
    )
    memory_bytes_per_s: Annotated[float | None, Meta(description="peak memory bandwidth of one unit")] = None
    site: Annotated[str | None, Meta(description='where the units stand, e.g. site = "eu-west"')] = None

    def __post_init__(self) -> None:
        """Refuse what no provider rents."""
        check_name(self)
        check_number(self, "price_per_hour", above=0)
        if self.limit is not None:
            check_whole_number(self, "limit", at_least=0)
        if self.site is not None:
            check_name(self, "site")
        for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
            if getattr(self, name) is not None:
                check_number(self, name, above=0)

    @property
    def units_to_be_had(self) -> int:
        """How many units a plan may use; an absent limit counts as a million."""
        return UNITS_WITHOUT_LIMIT if self.limit is None else min(self.limit, UNITS_WITHOUT_LIMIT)
