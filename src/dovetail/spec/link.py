"""What it takes to move bytes between two types."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from dovetail.spec.checks import check_name, check_number


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way from one type to another; it serves both directions unless both are given."""

    source: Annotated[str, Meta(description="the resource type the bytes leave")] = field(name="from")
    target: Annotated[str, Meta(description="the resource type the bytes reach")] = field(name="to")
    bytes_per_s: Annotated[float, Meta(description="the bandwidth of one unit's link, e.g. bytes_per_s = 12.5e9")]
    latency_s: Annotated[float, Meta(description="the seconds before the first byte arrives, e.g. 5e-5")] = 0.0

    def __post_init__(self) -> None:
        """Refuse links that carry nothing."""
        check_name(self, "source")
        check_name(self, "target")
        check_number(self, "bytes_per_s", above=0)
        check_number(self, "latency_s", at_least=0)
