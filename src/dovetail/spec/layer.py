"""A model's layers, what each takes on each type, and what part of an embedding's rows a unit may keep."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.errors import SpecError
from dovetail.spec.checks import check_name, check_number

LayerKind = Literal["embedding", "fc", "concat", "activation", "loss", "conv", "attention", "norm", "other"]


class RowCacheCurve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What keeping only some rows on a unit of a type costs, by the memory given to them."""

    hits: Annotated[
        tuple[tuple[float, float], ...],
        Meta(description="[bytes, part of a batch's rows found there], both rising, e.g. [[2e9, 0.82], [8e9, 0.86]]"),
    ]
    miss_s: Annotated[
        float, Meta(description="seconds of communication for one batch on one unit, if all of its rows lay elsewhere")
    ]
    least_bytes: Annotated[
        float, Meta(description="the least memory for rows that works: what the rows of one batch take")
    ] = 0.0

    def __post_init__(self) -> None:
        """Refuse a curve that falls, parts that are none, and times below zero."""
        check_number(self, "miss_s", at_least=0)
        check_number(self, "least_bytes", at_least=0)
        hint = "give [bytes, part] with more bytes and no smaller part from one to the next, e.g. [[2e9, 0.8]]"
        if not self.hits:
            raise SpecError("is empty", key="hits", hint=hint)
        for held_bytes, part in self.hits:
            if not (0 < held_bytes < float("inf") and 0 <= part <= 1):
                raise SpecError(f"has [{held_bytes:g}, {part:g}]", key="hits", hint=hint)
        for (one_bytes, one), (other_bytes, other) in itertools.pairwise(self.hits):
            if other_bytes <= one_bytes or other < one:
                raise SpecError(f"falls from {one:g} to {other:g} or has bytes that do not rise", key="hits", hint=hint)

    def hit_ratio(self, held_bytes: float) -> float:
        """Return the part of a batch's rows that are found in so many bytes: straight from point to point."""
        before_bytes, before = 0.0, 0.0
        for point_bytes, part in self.hits:
            if held_bytes <= point_bytes:
                return before + (part - before) * (held_bytes - before_bytes) / (point_bytes - before_bytes)
            before_bytes, before = point_bytes, part
        return before


class LayerTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one batch of a layer takes on one unit, and which part of it more units can share (Amdahl)."""

    compute_s: Annotated[float, Meta(description="seconds of computation on one unit for one batch; 0 is allowed")]
    comm_s: Annotated[float, Meta(description="seconds of communication on one unit for one batch; 0 is allowed")]
    compute_parallel: Annotated[
        float, Meta(description="the fraction of compute_s that more units share, from 0 to 1, e.g. 0.98")
    ]
    comm_parallel: Annotated[
        float, Meta(description="the fraction of comm_s that more units share, from 0 to 1, e.g. 0.9")
    ]
    source: Annotated[
        Literal["measured", "estimated"] | None,
        Meta(description='where the times come from: "measured" or "estimated"'),
    ] = None
    error: Annotated[float | None, Meta(description="the relative error of the times, e.g. 0.1")] = None
    cache: Annotated[
        RowCacheCurve | None, Meta(description="for an embedding: what it costs to keep only some rows on a unit")
    ] = None
    rows_bytes: Annotated[
        float | None, Meta(description="what a unit keeps of an embedding's rows; absent: its part of all of them")
    ] = None

    def __post_init__(self) -> None:
        """Refuse times and fractions that cannot be."""
        check_number(self, "compute_s", at_least=0)
        check_number(self, "comm_s", at_least=0)
        check_number(self, "compute_parallel", at_least=0, at_most=1)
        check_number(self, "comm_parallel", at_least=0, at_most=1)
        if self.error is not None:
            check_number(self, "error", at_least=0)
        if self.rows_bytes is not None:
            check_number(self, "rows_bytes", above=0)


class Layer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of a model; it runs on the types in `on` and on no other."""

    name: Annotated[str, Meta(description='the word for this layer, e.g. name = "embedding"')]
    on: Annotated[
        dict[str, LayerTime],
        Meta(description="a table of times for each resource the layer can run on: [layer.on.NAME]"),
    ]
    kind: Annotated[LayerKind, Meta(description="what the layer does, e.g. embedding, fc or other")] = "other"
    input_bytes: Annotated[float, Meta(description="what the layer reads for one batch")] = 0.0
    weight_bytes: Annotated[float, Meta(description="the size of the layer's parameters")] = 0.0
    output_bytes: Annotated[float, Meta(description="what the layer hands on for one batch")] = 0.0
    optimizer_bytes: Annotated[float, Meta(description="the size of the optimizer's state for its parameters")] = 0.0
    index_bytes: Annotated[float, Meta(description="what finding an embedding's rows takes beside the rows")] = 0.0
    activation_bytes: Annotated[
        float | None, Meta(description="what is kept of a batch until the backward pass; absent = output_bytes")
    ] = None
    after: Annotated[
        tuple[str, ...] | None,
        Meta(description='the layers this one reads, e.g. after = ["user", "item"]; absent = the layer before'),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a layer without a name or with sizes below zero."""
        check_name(self)
        for name in ("input_bytes", "weight_bytes", "output_bytes", "optimizer_bytes", "index_bytes"):
            check_number(self, name, at_least=0)
        if self.activation_bytes is not None:
            check_number(self, "activation_bytes", at_least=0)
