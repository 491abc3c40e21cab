"""Problem files whose types come from the catalogue."""

from __future__ import annotations

from pathlib import Path

from dovetail.catalogue.catalogue import Catalogue
from dovetail.catalogue.resolve import resolve_resource
from dovetail.errors import SpecError
from dovetail.spec import Problem
from dovetail.spec.files import read_table, struct_from


def read_problem_with(catalogue: Catalogue, path: Path, *, spot: bool = False) -> Problem:
    """Return the problem in a file; every `type = "cloud:instance"` in it is looked up in the catalogue."""
    table = read_table(path)
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
                    raise error.under(f"resource[{position}]").in_file(str(path)) from None
            else:
                resolved.append(resource)
        table = {**table, "resource": resolved}
    if spot and not uses_catalogue:
        raise SpecError(
            "has no resource with a `type`, so there are no spot prices to use",
            hint='give a [[resource]] type = "aws:g5.xlarge", or leave --spot out',
            file=str(path),
        )
    return struct_from(table, Problem, file=str(path))
