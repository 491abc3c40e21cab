"""A plan: which layers run on which type, on how many units."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.spec.beside import Place
from dovetail.spec.checks import check_name, check_whole_number
from dovetail.spec.resource import Kind
from dovetail.units import format_usd


class Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run of consecutive layers on one type, shared by `units` of it."""

    resource: Annotated[str, Meta(description="the name of the type the stage runs on")]
    first_layer: Annotated[int, Meta(description="the position of the stage's first layer, from 0")]
    last_layer: Annotated[int, Meta(description="the position of the stage's last layer, itself included")]
    units: Annotated[int, Meta(description="how many units share the stage, 1 or more")]
    kind: Annotated[
        Kind | None, Meta(description='what the type is, where the problem says: "cpu", "gpu" or "other"')
    ] = None
    layers: Annotated[tuple[str, ...] | None, Meta(description="the names of the stage's layers")] = None
    dense: Annotated[
        Literal["ring", "ps"] | None, Meta(description='how dense gradients are averaged: "ring" or "ps"')
    ] = None
    row_budgets: Annotated[
        dict[str, float] | None,
        Meta(description="bytes of rows that a unit keeps, by embedding; those that are not named keep all"),
    ] = None
    row_hits: Annotated[
        dict[str, float] | None,
        Meta(description="for each of row_budgets: the part of a batch's rows that is foretold to be found there"),
    ] = None
    seconds_per_batch: Annotated[float | None, Meta(description="the modelled seconds of the stage for one batch")] = (
        None
    )

    def __post_init__(self) -> None:
        """Refuse a stage without layers or units."""
        check_name(self, "resource")
        check_whole_number(self, "first_layer", at_least=0)
        check_whole_number(self, "last_layer", at_least=self.first_layer)
        check_whole_number(self, "units", at_least=1)


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one part of a plan takes: all work at once, but for the step, which comes on top of the slowest."""

    part: Annotated[
        str,
        Meta(
            description='"read", "servers", "stage 0" and so on, "step" (what is fixed, filling and draining), "whole" '
            '(everything, as measured), and "rows": what its stage spends on rows that servers keep, counted there'
        ),
    ]
    seconds_per_batch: Annotated[float, Meta(description="the modelled seconds of the part for one batch")]
    cores: Annotated[int, Meta(description="the cores that it takes, those that feed accelerators too")] = 0


class Compared(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plain layout that is always compared with the chosen one."""

    layout: Annotated[str, Meta(description='"one process on gpu", "plain data parallel on cpu", ...')]
    samples_per_s: Annotated[float, Meta(description="its pace")]
    cost_per_hour: Annotated[float, Meta(description="USD per hour")]
    cost: Annotated[float, Meta(description="USD for the whole training")]


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A plan with what it costs and how far that is proven: no plan costs less than `lower_bound`."""

    method: Annotated[str, Meta(description="the planner's method")]
    stages: Annotated[tuple[Stage, ...], Meta(description="the stages, in the order of the layers")]
    samples_per_s: Annotated[float, Meta(description="the pace of the slowest stage")]
    cost_per_hour: Annotated[float, Meta(description="USD per hour for all units, and the first node")]
    cost: Annotated[float, Meta(description="USD for the whole training: units, and bytes between sites")]
    lower_bound: Annotated[float, Meta(description="USD; no plan that meets the demands costs less")]
    optimal: Annotated[bool, Meta(description="whether cost is within 1e-6 of lower_bound")]
    seconds: Annotated[float, Meta(description="how long planning took")]
    batch: Annotated[int | None, Meta(description="the batch the stage times are for")] = None
    hours: Annotated[float | None, Meta(description="how long training takes")] = None
    egress_cost: Annotated[
        float | None, Meta(description="the part of cost that is paid for bytes between sites; absent where none cross")
    ] = None
    egress_bytes: Annotated[
        float | None, Meta(description="the bytes that cross between sites in the whole training; absent where none do")
    ] = None
    first_node_per_hour: Annotated[
        float | None,
        Meta(description="the part of cost_per_hour for the machine of launcher, coordinator and servers"),
    ] = None
    spot: Annotated[
        bool, Meta(description="whether it was made by spot prices: `dovetail launch` then asks for such machines")
    ] = False
    measured_samples_per_s: Annotated[
        float | None, Meta(description="the pace that a run of the plan was seen to reach, where one was made")
    ] = None
    problem: Annotated[str | None, Meta(description="a hash of the problem the plan was made for")] = None
    place: Annotated[
        Place | None,
        Meta(
            description='where rows are kept: "local" (with the one process that trains), "servers" or "sharded" (over '
            "the workers); absent where the problem has no [beside]"
        ),
    ] = None
    servers: Annotated[int | None, Meta(description="how many servers, one core each")] = None
    readers: Annotated[
        int | None, Meta(description="how many cores read; absent where the layout was measured as a whole")
    ] = None
    cores: Annotated[int | None, Meta(description="all cores taken: units of kind cpu, readers, servers, feeding")] = (
        None
    )
    parts: Annotated[tuple[Part, ...], Meta(description="what each part takes for one batch")] = ()
    compared: Annotated[
        tuple[Compared, ...], Meta(description="plain layouts that were compared with the chosen one")
    ] = ()

    def __repr__(self) -> str:
        """Return the stages in words, what they cost, and what may be done next."""
        stages = " -> ".join(
            f"{stage.units:,} x {stage.resource} (layers {stage.first_layer}-{stage.last_layer})"
            for stage in self.stages
        )
        proof = "proven the cheapest" if self.optimal else f"at least {format_usd(self.lower_bound)}"
        return (
            f"<Plan by {self.method}: {stages}\n {self.samples_per_s:,.0f} samples/s, "
            f"{format_usd(self.cost_per_hour)} an hour, {format_usd(self.cost)} in all, {proof}\n"
            " next: dovetail.train(..., plan=FILE), dovetail check, dovetail launch>"
        )
