"""What one unit of a plan's type is on a machine: so many cores, or so many GPUs.

The plan says what kind a type is, or the problem that it was made for, or the catalogue; where none of them does, a
type that is called after CPUs is one, and any other is a GPU. A unit is one core or one GPU; a unit of the catalogue,
which is an instance as rented, is all of its virtual CPUs, or all of its accelerators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.catalogue import Catalogue, CatalogueEntry
from dovetail.catalogue.data_sheets import chip_of
from dovetail.errors import PlanError
from dovetail.spec.plan import Stage
from dovetail.spec.problem import Problem
from dovetail.spec.resource import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUnit:
    """One unit of a type."""

    on_gpu: bool
    size: int = 1
    """Cores, or GPUs."""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.size} {'GPU' if self.on_gpu else 'core'}{'s' * (self.size != 1)}"


def units_of(
    stages: Sequence[Stage], problem: Problem | None = None, catalogue: Catalogue | None = None
) -> dict[str, PlanUnit]:
    """Return what a unit of each type is here, of a plan's types and of its problem's that a machine may have.

    A stage on what is neither a CPU nor a GPU is refused.
    """
    named = {entry.instance: entry for entry in (catalogue or {}).values()} | dict(catalogue or {})
    kinds: dict[str, Kind | None] = {}
    if problem is not None:
        kinds = {resource.name: resource.kind for resource in problem.resources}
    for stage in stages:
        kinds[stage.resource] = stage.kind or kinds.get(stage.resource)
    found = {name: _unit(name, kind, named.get(name)) for name, kind in kinds.items()}
    for stage in stages:
        if found[stage.resource] is None:
            raise PlanError(
                f'`{stage.resource}` is of kind "other", and what runs here are CPUs and GPUs',
                hint="plan for what is here: dovetail profile measures the types at hand",
            )
    return {name: unit for name, unit in found.items() if unit is not None}


def is_called_gpu(resource: str) -> bool:
    """Say whether a type is a GPU by its name alone: all are but those that are called after CPUs."""
    return "cpu" not in resource.lower()


def _unit(name: str, kind: Kind | None, entry: CatalogueEntry | None) -> PlanUnit | None:
    """Return what a unit of a type is here; None where it is neither a CPU nor a GPU."""
    if kind is None and entry is not None:
        kind = entry.kind
    elif kind is None and chip_of(name) is not None:  # of a family of CPU types, in a size that is not listed
        kind = "cpu"
    if kind == "other":
        return None
    on_gpu = is_called_gpu(name) if kind is None else kind == "gpu"
    if entry is None or (entry.kind == "gpu") != on_gpu:
        return PlanUnit(on_gpu=on_gpu)
    return PlanUnit(on_gpu=on_gpu, size=max(1, entry.num_accelerators if on_gpu else int(entry.vcpus or 1)))
