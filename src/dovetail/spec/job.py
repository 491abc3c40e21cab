"""A training job that can run on several numbers of workers, and how fast it goes on each."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number, check_whole_number, show

SPEED_EXAMPLE = 'e.g. {"v100": {"1": 1.0, "2": 1.9, "4": 3.4}}: for each type, workers and the speed with them'

SpeedTable = dict[str, Any]
"""Type to workers (a whole number as text) to speed; checked where a job is made, never after."""


class LossCurve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loss a job reports as it works, and the loss at which it is done."""

    points: Annotated[
        tuple[tuple[float, float], ...],
        Meta(description="pairs of work done and the loss there, in rising order of work, e.g. [[0, 2.3], [10, 1.1]]"),
    ]
    target: Annotated[float, Meta(description="the loss at which the job is done, e.g. 0.25")]

    def __post_init__(self) -> None:
        """Refuse a curve that runs backwards."""
        check_number(self, "target")
        works = [work for work, _ in self.points]
        if any(after <= before for before, after in itertools.pairwise(works)) or (works and works[0] < 0):
            raise SpecError(
                "do not rise in work", key="points", hint="each point is [work done, loss]; work rises from 0 on"
            )


class BatchSize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A global batch a job may use instead of its own: faster in samples, and each sample worth less."""

    efficiency: Annotated[
        float, Meta(description="what a sample is worth with this batch, against 1 with the job's own, e.g. 0.9")
    ]
    speed: Annotated[SpeedTable, Meta(description=f"the speed with this batch, {SPEED_EXAMPLE}")]

    def __post_init__(self) -> None:
        """Refuse an efficiency that is none."""
        check_number(self, "efficiency", above=0)
        if self.efficiency > 1:
            raise SpecError(
                f"is {show(self.efficiency)}, expected a number above 0, at most 1",
                key="efficiency",
                hint="1 means that a sample is worth as much as with the job's own batch",
            )
        msgspec.structs.force_setattr(self, "speed", checked_speed(self.speed))


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job: `work` to do, in the units of `speed` times seconds, from `submit_s` on."""

    id: Annotated[str, Meta(description='the word for this job, e.g. "a"; no two jobs share one')]
    work: Annotated[float, Meta(description="the work there is, in the units of `speed` times seconds, e.g. 1000.0")]
    speed: Annotated[SpeedTable, Meta(description=SPEED_EXAMPLE)]
    submit_s: Annotated[float, Meta(description="when the job arrives, in seconds, e.g. 0.0")] = 0.0
    min_workers: Annotated[int, Meta(description="the fewest workers the job runs on, e.g. 1")] = 1
    max_workers: Annotated[
        int | None, Meta(description="the most workers it runs on, e.g. 8; absent = the most in its speed table")
    ] = None
    restart_s: Annotated[
        float | None, Meta(description="seconds that each start of this job takes; absent = the workload's")
    ] = None
    resize_s: Annotated[
        float | None,
        Meta(description="seconds that other workers of its type take it while it runs; absent = the workload's"),
    ] = None
    weight: Annotated[float, Meta(description="how much this job counts against others, e.g. 1.0")] = 1.0
    deadline_s: Annotated[
        float | None, Meta(description="when it should be done, in seconds as submit_s; later counts as missed")
    ] = None
    user: Annotated[str | None, Meta(description="whose job it is")] = None
    kind: Annotated[
        str | None, Meta(description='what it trains, e.g. "resnet50"; jobs of one kind share what is learnt of speed')
    ] = None
    spread_speed: Annotated[
        float | None,
        Meta(description="the share of its speed left on more nodes than needed, e.g. 0.8; absent = all of it"),
    ] = None
    site_bytes: Annotated[
        float | None,
        Meta(description="where it stands at several sites: what each sends each other for a unit of work; absent = 0"),
    ] = None
    loss: Annotated[LossCurve | None, Meta(description="the loss it reports: points and target")] = None
    efficiency: Annotated[
        dict[str, BatchSize], Meta(description="other batch sizes it may use, each with efficiency and speed")
    ] = {}

    def __post_init__(self) -> None:
        """Refuse a job that could never be run."""
        check_name(self, "id")
        check_number(self, "work", above=0)
        check_number(self, "submit_s", at_least=0)
        check_number(self, "weight", above=0)
        check_whole_number(self, "min_workers", at_least=1)
        if self.max_workers is not None:
            check_whole_number(self, "max_workers", at_least=1)
            if self.max_workers < self.min_workers:
                raise SpecError(
                    f"is {self.max_workers}, below min_workers = {self.min_workers}",
                    key="max_workers",
                    hint="raise max_workers or lower min_workers",
                )
        for name in ("restart_s", "resize_s", "deadline_s", "site_bytes"):
            if getattr(self, name) is not None:
                check_number(self, name, at_least=0)
        if self.spread_speed is not None:
            check_number(self, "spread_speed", above=0)
            check_number(self, "spread_speed", at_least=0, at_most=1)
        msgspec.structs.force_setattr(self, "speed", checked_speed(self.speed))
        for size in self.efficiency:
            if not _is_whole(size):
                raise SpecError(
                    "is not a batch size", key=f"efficiency.{size}", hint='write whole samples, e.g. "256": {...}'
                )

    def workers_on(self, type_name: str) -> range:
        """Return the worker counts the job may use of a type: those in both its table and min..max."""
        return allowed_workers(self.speed, type_name, self.min_workers, self.max_workers)


def allowed_workers(speed: SpeedTable, type_name: str, min_workers: int, max_workers: int | None) -> range:
    """Return the worker counts that lie in both a type's table and min..max."""
    curve = speed.get(type_name)
    if not curve:
        return range(0)
    counts = [int(count) for count in curve]
    last = counts[-1] if max_workers is None else min(counts[-1], max_workers)
    return range(max(counts[0], min_workers), last + 1)


def checked_speed(table: SpeedTable) -> SpeedTable:
    """Return a speed table with its counts in rising order, or say which entry is wrong."""
    if not table:
        raise SpecError("is empty", key="speed", hint=f"give at least one type, {SPEED_EXAMPLE}")
    checked: SpeedTable = {}
    for type_name, curve in table.items():
        key = f"speed.{type_name}"
        if not isinstance(curve, dict) or not curve:
            raise SpecError(f"is {show(curve) if curve else 'empty'}, expected a table", key=key, hint=SPEED_EXAMPLE)
        for count, speed in curve.items():
            if not _is_whole(count):
                raise SpecError(
                    "is not a number of workers", key=f"{key}.{count}", hint='write whole workers, e.g. "4": 3.4'
                )
            is_number = isinstance(speed, int | float) and not isinstance(speed, bool)
            if not is_number or not 0 < speed < 1e300:
                raise SpecError(
                    f"is {show(speed)}, expected a number above zero",
                    key=f"{key}.{count}",
                    hint="leave out the worker counts that the job cannot use",
                )
        checked[type_name] = {str(count): float(curve[str(count)]) for count in sorted(int(count) for count in curve)}
    return checked


def _is_whole(text: str) -> bool:
    """Say whether a key is a whole number of at least one, written plainly."""
    return text.isascii() and text.isdigit() and len(text) < 8 and text[0] != "0"
