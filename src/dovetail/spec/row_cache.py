"""Rows of an embedding that a unit keeps in its own memory while the others lie elsewhere."""

from __future__ import annotations

import itertools
from typing import Annotated

from msgspec import Meta, Struct

from dovetail.errors import SpecError
from dovetail.spec.checks import check_number


class RowCache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
