"""Problem files whose types come from the catalogue: from `type = "aws:g5.xlarge"` to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.catalogue.catalogue import Catalogue, users_catalogue
from dovetail.errors import SpecError
from dovetail.spec import Problem
from dovetail.spec.checks import show
from dovetail.spec.files import read_table, struct_from


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


def read_problem_with(catalogue: Catalogue, path: Path, *, spot: bool = False) -> Problem:
    """Return the problem in a file; every `type = "cloud:instance"` in it is looked up in the catalogue."""
    return problem_from_table(catalogue, read_table(path), file=str(path), spot=spot)


def problem_from_table(catalogue: Catalogue, table: dict[str, Any], *, file: str, spot: bool = False) -> Problem:
    """Return the problem in the table that a file holds."""
    resources = table.get("resource")
    uses_catalogue = False
    if isinstance(resources, list):
        resolved = []
        for position, resource in enumerate(resources):
            if isinstance(resource, dict) and "type" in resource:
                uses_catalogue = True
                try:
                    resolved.append(resolve_resource(resource, catalogue, spot=spot))
                except SpecError as error:
                    raise error.under(f"resource[{position}]").in_file(file) from None
            else:
                resolved.append(resource)
        table = {**table, "resource": resolved}
    if spot and not uses_catalogue:
        raise SpecError(
            "has no resource with a `type`, so there are no spot prices to use",
            hint='give a [[resource]] type = "aws:g5.xlarge", or leave --spot out',
            file=file,
        )
    return struct_from(table, Problem, file=file)


def read_problem(path: Path | str, *, spot: bool = False) -> Problem:
    """Return the problem in a file; types of the catalogue are looked up, with `spot` by their spot prices."""
    return read_problem_with(users_catalogue(), Path(path), spot=spot)
