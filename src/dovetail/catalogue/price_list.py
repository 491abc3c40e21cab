"""A catalogue file: types with their prices, and when and where those prices were taken."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dovetail.catalogue.entry import CatalogueEntry, check_date
from dovetail.errors import SpecError
from dovetail.spec.checks import check_name
from dovetail.spec.files import read_struct


class PriceList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one file says; its date and source stand for every entry that gives none of its own."""

    entries: Annotated[tuple[CatalogueEntry, ...], Meta(description="one table [[type]] for each type")] = field(
        name="type"
    )
    prices_as_of: Annotated[
        str | None, Meta(description='the month or day of the prices, e.g. prices_as_of = "2026-08"')
    ] = None
    prices_source: Annotated[str | None, Meta(description="where the prices come from, in words")] = None

    def __post_init__(self) -> None:
        """Refuse an id given twice; two files may share one, and the later file wins."""
        check_date(self)
        if self.prices_source is not None:
            check_name(self, "prices_source")
        first_seen: dict[str, int] = {}
        for position, entry in enumerate(self.entries):
            if entry.id in first_seen:
                raise SpecError(
                    f'is "{entry.id}", the id of type[{first_seen[entry.id]}] too',
                    key=f"type[{position}].id",
                    hint="keep one of the two, or give each its own id",
                )
            first_seen[entry.id] = position

    def dated_entries(self) -> tuple[CatalogueEntry, ...]:
        """Return the entries, each with the date and the source of its price."""
        return tuple(
            replace(
                entry,
                prices_as_of=entry.prices_as_of or self.prices_as_of,
                prices_source=entry.prices_source or self.prices_source,
            )
            for entry in self.entries
        )


def read_price_list(path: Path) -> PriceList:
    """Return the types in a TOML or JSON file of a user's own."""
    return read_struct(path, PriceList)


def packaged_price_list() -> PriceList:
    """Return the types that come with Dovetail."""
    with resources.as_file(resources.files("dovetail.catalogue") / "types.toml") as path:
        return read_struct(path, PriceList)
