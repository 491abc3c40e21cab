"""From `type = "aws:g5.xlarge"` in a problem file to the numbers it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.catalogue.catalogue import Catalogue
from dovetail.errors import SpecError
from dovetail.spec.checks import show


def resolve_resource(table: Mapping[str, Any], catalogue: Catalogue, *, spot: bool) -> dict[str, Any]:
    """Return a [[resource]] table with the catalogue's facts in place of its `type`.

    What the table gives itself stays, its own price too; what the catalogue does not know stays out. A table without
    `type` is returned as it is.
    """
    if "type" not in table:
        return dict(table)
    wanted = table["type"]
    if not isinstance(wanted, str):
        raise SpecError(
            f"is {show(wanted)}, expected text in quotes",
            key="type",
            hint='`type` is the id of a catalogue entry, e.g. type = "aws:g5.xlarge"',
        )
    given = {key: value for key, value in table.items() if key != "type"}
    try:
        facts = _facts(catalogue, wanted, spot=spot and "price_per_hour" not in given)
    except SpecError as error:
        raise error.under("type") from None
    return facts | given


def _facts(catalogue: Catalogue, entry_id: str, *, spot: bool) -> dict[str, Any]:
    """Return what the catalogue knows about a type, under the keys of a [[resource]] table."""
    resource = catalogue.find(entry_id).to_resource(spot=spot)
    keys = ("name", "kind", "price_per_hour", "memory_bytes", "flops_per_s", "memory_bytes_per_s")
    return {key: value for key in keys if (value := getattr(resource, key)) is not None}
