"""The machine that a plan needs beside its units where each unit is a machine of its own."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.spec.checks import check_number, check_whole_number


class FirstNode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What runs launcher, coordinator and servers, and holds no units; every plan pays for it by the hour."""

    price_per_hour: Annotated[float, Meta(description="USD for it per hour, e.g. price_per_hour = 0.13")]
    cores: Annotated[
        int | None, Meta(description="how many cores that buys; more, for more servers, are priced by their number")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a price below zero."""
        check_number(self, "price_per_hour", at_least=0)
        if self.cores is not None:
            check_whole_number(self, "cores", at_least=1)
