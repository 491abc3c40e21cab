"""The section of a run file that says what is promised about single samples."""

from __future__ import annotations

from typing import Annotated, Literal

from dovetail.errors import SpecError
from dovetail.spec.checks import check_number
from dovetail.spec.run_sections import Meta, Section

Accountant = Literal["pld", "rdp"]
Aggregation = Literal["plain", "masked"]


class RunPrivacy(Section, frozen=True):
    """What is promised about single samples: differential privacy, and who may see whose gradients; absent, nothing."""

    epsilon: Annotated[
        float | None,
        Meta(description="the budget of the run, above zero: no sample changes what comes out by more; absent: no end"),
    ] = None
    delta: Annotated[
        float | None, Meta(description="how likely the promise may fail, above 0 and below 1; well below 1 / samples")
    ] = None
    clip: Annotated[
        float | None,
        Meta(description="what the norm of one sample's gradient, over dense parameters and rows together, is cut to"),
    ] = None
    noise: Annotated[
        float | None,
        Meta(
            description="standard deviation of the noise in a step's sum of gradients, over clip; absent: the least "
            "that the budget allows over all steps"
        ),
    ] = None
    accountant: Annotated[
        Accountant, Meta(description="how what is spent is counted: pld (exact up to rounding) or rdp (never less)")
    ] = "pld"
    aggregation: Annotated[
        Aggregation,
        Meta(description="what servers see: plain (each worker's gradients) or masked (the sums over workers alone)"),
    ] = "plain"

    mask_range: Annotated[
        float | None,
        Meta(
            description="with masked: how large a number of a sample's gradient may be; sums reach that times the "
            "samples of a step, and more is cut; absent: clip, or 1"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse half a promise, and numbers that promise nothing."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) < len(given) or self.noise is not None:
            for name in missing:
                raise SpecError(
                    "is missing",
                    key=name,
                    hint="a promise needs epsilon, delta and clip; `dovetail privacy` says what each costs",
                )
        if self.mask_range is not None:
            check_number(self, "mask_range", above=0.0)
        if not self.is_private:
            return
        for name in ("epsilon", "clip"):
            check_number(self, name, above=0.0)
        check_number(self, "delta", above=0.0)
        if self.delta is not None and self.delta >= 1.0:
            raise SpecError(f"is {self.delta:g}, expected a number below 1", key="delta", hint="e.g. delta = 1e-6")
        if self.noise is not None:
            check_number(self, "noise", above=0.0)

    @property
    def is_private(self) -> bool:
        """Whether gradients are clipped, and noise is added."""
        return not (self.epsilon is None and self.delta is None and self.clip is None)
