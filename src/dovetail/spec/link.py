"""What it takes to move bytes between two types, and between two sites, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_name, check_number

BYTES_PER_GB = 1e9


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


class SiteLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way from one site to another, shared by all who cross it; both directions unless both are given."""

    source: Annotated[str, Meta(description="the site the bytes leave")] = field(name="from")
    target: Annotated[str, Meta(description="the site the bytes reach")] = field(name="to")
    bytes_per_s: Annotated[
        float, Meta(description="the bandwidth between the sites, of all units together, e.g. bytes_per_s = 12.5e6")
    ]
    latency_s: Annotated[float, Meta(description="the seconds before the first byte arrives, e.g. 0.04")] = 0.0
    price_per_gb: Annotated[
        float, Meta(description="in USD for 1e9 bytes that leave this way (egress), e.g. price_per_gb = 0.09")
    ] = 0.0

    def __post_init__(self) -> None:
        """Refuse links that carry nothing, or pay for being used."""
        check_name(self, "source")
        check_name(self, "target")
        check_number(self, "bytes_per_s", above=0)
        check_number(self, "latency_s", at_least=0)
        check_number(self, "price_per_gb", at_least=0)

    @property
    def price_per_byte(self) -> float:
        """USD for one byte."""
        return self.price_per_gb / BYTES_PER_GB


def link_between(links: Sequence[SiteLink], source: str, target: str) -> SiteLink | None:
    """Return the link that carries bytes from one site to another, or None where there is none."""
    backwards = None
    for link in links:
        if (link.source, link.target) == (source, target):
            return link
        if (link.source, link.target) == (target, source):
            backwards = link
    return backwards


def check_site_links(links: Sequence[SiteLink], sites: Collection[str], *, key: str) -> None:
    """Refuse links to unknown sites, from a site to itself, and links given twice."""
    seen: set[tuple[str, str]] = set()
    for position, link in enumerate(links):
        for end, name in (("from", link.source), ("to", link.target)):
            if name not in sites:
                raise SpecError(
                    f'is "{name}", which is no site', key=f"{key}[{position}].{end}", hint=did_you_mean(name, sites)
                )
        if link.source == link.target:
            raise SpecError(
                f"joins site `{link.source}` with itself",
                key=f"{key}[{position}]",
                hint="it is between two sites; inside a site, say nothing, or give links between types",
            )
        if (link.source, link.target) in seen:
            raise SpecError(
                f"gives the way from `{link.source}` to `{link.target}` a second time",
                key=f"{key}[{position}]",
                hint="keep one for each direction",
            )
        seen.add((link.source, link.target))
