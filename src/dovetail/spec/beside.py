"""What runs beside the layers, for one batch: reading, rows that servers keep, steps; and layouts measured whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dovetail.errors import SpecError, did_you_mean
from dovetail.spec.checks import check_name, check_number, check_whole_number, show

Place = Literal["local", "servers", "sharded"]


class Whole(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A layout of all layers on one type, measured as a whole by a short run; it goes before any formula."""

    place: Annotated[
        Place,
        Meta(description='where rows were: "local" (with the one process), "servers" or "sharded" (over the workers)'),
    ]
    resource: Annotated[str, Meta(description="the type that all layers ran on")]
    units: Annotated[
        int, Meta(description="its workers; for one process on a cpu its threads, on an accelerator always 1")
    ]
    cores: Annotated[int, Meta(description="all cores that it took: threads, readers, servers, feeding accelerators")]
    seconds_per_batch: Annotated[float, Meta(description="what a batch took, everything included")]
    servers: Annotated[int, Meta(description='how many servers; 0 unless place = "servers"')] = 0
    error: Annotated[float | None, Meta(description="the relative error of the measurement, e.g. 0.05")] = None
    between: Annotated[
        bool, Meta(description="true where it was not run itself: its time lies between those of two that were")
    ] = False

    def __post_init__(self) -> None:
        """Refuse layouts that cannot be."""
        check_name(self, "resource")
        check_whole_number(self, "units", at_least=1)
        check_whole_number(self, "cores", at_least=0)
        check_number(self, "seconds_per_batch", above=0)
        check_whole_number(self, "servers", at_least=0)
        if self.error is not None:
            check_number(self, "error", at_least=0)
        if (self.place == "servers") != (self.servers > 0):
            raise SpecError(
                f'is {self.servers} with place = "{self.place}"',
                key="servers",
                hint='give servers of 1 or more with place = "servers", and none otherwise',
            )


class Beside(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What runs beside the layers for one batch of `training.batch`; without this table it is not priced."""

    read_core_s: Annotated[
        float, Meta(description="seconds of one core to read and assemble one batch; 0 where nothing is read")
    ]
    host_cores: Annotated[
        dict[str, int],
        Meta(description="cores of its machine that a unit of a type takes as well, to be fed, e.g. { gpu = 1 }"),
    ] = {}
    micro_batch: Annotated[
        int | None,
        Meta(description="samples that stages hand on at once, for filling and draining them; absent: not priced"),
    ] = None
    step_s: Annotated[float, Meta(description="fixed seconds of a step over several processes")] = 0.0
    server_core_s: Annotated[
        float | None,
        Meta(description="seconds of one server core for the rows of a batch; absent: rows are not put on servers"),
    ] = None
    client_s: Annotated[
        dict[str, float],
        Meta(
            description="unit-seconds a batch that a type's workers spend on rows that servers keep, instead of the "
            "embeddings' own times, e.g. { cpu = 0.02, gpu = 0.006 }"
        ),
    ] = {}
    client_parallel: Annotated[
        dict[str, float],
        Meta(
            description="the part of client_s that several workers share, by type, 0..1; absent: all of it. Workers "
            "that each have a part of a batch look up rows that others have as well, e.g. { cpu = 0.8 }"
        ),
    ] = {}
    places: Annotated[
        tuple[Place, ...],
        Meta(description='where rows may be, e.g. ["servers"] for several hosts; absent: anywhere'),
    ] = ("local", "servers", "sharded")
    wholes: Annotated[
        tuple[Whole, ...], Meta(description="one table [[beside.whole]] for each layout that was measured as a whole")
    ] = field(name="whole", default=())

    def __post_init__(self) -> None:
        """Refuse times below zero."""
        check_number(self, "read_core_s", at_least=0)
        check_number(self, "step_s", at_least=0)
        if self.micro_batch is not None:
            check_whole_number(self, "micro_batch", at_least=1)
        if self.server_core_s is not None:
            check_number(self, "server_core_s", at_least=0)
        if not self.places:
            raise SpecError("is empty: rows are somewhere", key="places", hint='e.g. places = ["servers"]')
        for name, cores in self.host_cores.items():
            if cores < 0:
                raise _refused(f"host_cores.{name}", cores, "a whole number of at least 0")
        for name, seconds in self.client_s.items():
            if not 0 <= seconds < float("inf"):
                raise _refused(f"client_s.{name}", seconds, "a number of at least 0")
        for name, part in self.client_parallel.items():
            if not 0 <= part <= 1:
                raise _refused(f"client_parallel.{name}", part, "a number from 0 to 1")
            if name not in self.client_s:
                raise SpecError(
                    "has no time to share", key=f"client_parallel.{name}", hint=f"add client_s.{name}, or leave it out"
                )


def _refused(key: str, value: float, expected: str) -> SpecError:
    return SpecError(f"is {show(value)}, expected {expected}", key=key, hint="measure it again, or leave it out")


def check_beside(
    beside: Beside, *, types: Sequence[str], cpu_types: Sequence[str], has_embeddings: bool, key: str = "beside"
) -> None:
    """Refuse what speaks of unknown types, says half of what servers take, or cannot have been measured."""
    for part in ("host_cores", "client_s", "client_parallel"):
        for name in getattr(beside, part):
            if name not in types:
                raise SpecError(
                    "names a resource that is not there", key=f"{key}.{part}.{name}", hint=did_you_mean(name, types)
                )
    for name in beside.host_cores:
        if name in cpu_types:
            raise SpecError(
                f"is {beside.host_cores[name]} for a type of kind cpu",
                key=f"{key}.host_cores.{name}",
                hint="its units are cores themselves: leave it out",
            )
    if has_embeddings and beside.server_core_s is not None and not beside.client_s:
        raise SpecError(
            "is missing, though `server_core_s` is given",
            key=f"{key}.client_s",
            hint="say what workers spend on rows that servers keep, e.g. client_s = { cpu = 0.02 }",
        )
    if beside.client_s and beside.server_core_s is None:
        raise SpecError(
            "is missing, though `client_s` is given",
            key=f"{key}.server_core_s",
            hint="say what servers spend on the rows of a batch, e.g. server_core_s = 0.02",
        )
    _check_wholes(beside, types=types, cpu_types=cpu_types, key=key)


def _check_wholes(beside: Beside, *, types: Sequence[str], cpu_types: Sequence[str], key: str) -> None:
    """Refuse layouts that cannot have been measured, and those given twice."""
    seen: set[tuple[str, str, int, int]] = set()
    for position, whole in enumerate(beside.wholes):
        at = f"{key}.whole[{position}]"
        if whole.resource not in types:
            raise SpecError(
                f'is "{whole.resource}", which is no resource',
                key=f"{at}.resource",
                hint=did_you_mean(whole.resource, types),
            )
        if whole.place == "local" and whole.resource not in cpu_types and whole.units != 1:
            raise SpecError(
                f"is {whole.units} for one process on `{whole.resource}`",
                key=f"{at}.units",
                hint='one process has one unit of it; several workers are place = "sharded" or "servers"',
            )
        least = beside.host_cores.get(whole.resource, 0) * whole.units
        least += whole.units if whole.resource in cpu_types else 0
        if whole.cores < least:  # servers and readers may take turns with others
            raise SpecError(
                f"is {whole.cores}, and its units and threads that feed them alone take {least}",
                key=f"{at}.cores",
                hint="count all cores that it took, those of readers too",
            )
        layout = (whole.place, whole.resource, whole.units, whole.servers)
        if layout in seen:
            raise SpecError("is measured a second time", key=at, hint="keep one table for each layout")
        seen.add(layout)
