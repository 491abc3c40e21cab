"""Machines: cores, memory and accelerators that all who run on one share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_name, check_number, check_whole_number, show


class SharedMachine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What everybody on one machine shares: units of kind cpu, readers, servers and threads that feed accelerators."""

    name: Annotated[str, Meta(description='the word for this machine, e.g. name = "here"')]
    cores: Annotated[int, Meta(description="how many cores it has for all who run there, e.g. cores = 16")]
    memory_bytes: Annotated[
        float | None, Meta(description="its memory for rows outside accelerators, e.g. memory_bytes = 1.2e11")
    ] = None
    units: Annotated[
        dict[str, int],
        Meta(description="its units of accelerator types, e.g. units = { gpu = 1 }; types not named stand elsewhere"),
    ] = {}
    count: Annotated[int, Meta(description="how many machines are like this, e.g. count = 4")] = 1

    def __post_init__(self) -> None:
        """Refuse a machine that has nothing, and fewer than no units."""
        check_name(self)
        check_whole_number(self, "cores", at_least=1)
        check_whole_number(self, "count", at_least=1)
        if self.memory_bytes is not None:
            check_number(self, "memory_bytes", above=0)
        for name, units in self.units.items():
            if units < 0:
                raise SpecError(
                    f"is {show(units)}, expected a whole number of at least 0",
                    key=f"units.{name}",
                    hint="say how many units of the type one such machine has",
                )


def check_machines(machines: Sequence[SharedMachine], *, types: Sequence[str], cpu_types: Sequence[str]) -> None:
    """Refuse machines with units of unknown types, and cores that are counted twice."""
    for position, machine in enumerate(machines):
        for name in machine.units:
            key = f"machine[{position}].units.{name}"
            if name not in types:
                raise SpecError("names a resource that is not there", key=key, hint=did_you_mean(name, types))
            if name in cpu_types:
                raise SpecError(
                    f"counts units of `{name}`, which is of kind cpu",
                    key=key,
                    hint=f"a unit of kind cpu is one of the {machine.cores} `cores`: leave it out",
                )
