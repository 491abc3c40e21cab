"""The section of a run file about numbers in fewer bits, where links are slow."""

from __future__ import annotations

from typing import Annotated, Literal

from dovetail.errors import SpecError
from dovetail.spec.checks import check_number
from dovetail.spec.run_section import Meta, Section

Bits = Literal["auto", 32, 16, 8, 4, 2, 1]
ActivationBits = Literal[32, 16, 8, 4]


class RunCompression(Section, frozen=True):
    """In how many bits numbers travel; absent, in 32, as they are."""

    bits: Annotated[
        Bits,
        Meta(
            description="a number of gradients between workers and servers, or around a ring: 32, 16, 8, 4, 2, 1, or "
            "auto (as many as still hide behind computing, by what is measured on each link)"
        ),
    ] = 32
    topk: Annotated[
        float | None,
        Meta(description="in the place of bits: the part of a dense gradient that goes, its largest numbers, 0 to 1"),
    ] = None
    activations: Annotated[
        ActivationBits, Meta(description="a number between stages: 32 (as training.activations says), 16, 8 or 4")
    ] = 32

    def __post_init__(self) -> None:
        """Refuse no numbers at all, and two ways at once."""
        if self.topk is not None:
            check_number(self, "topk", above=0.0, at_most=1.0)
            if self.bits != 32:
                raise SpecError(f"is {self.topk:g}, and bits is {self.bits}", key="topk", hint="choose one of them")

    @property
    def is_wanted(self) -> bool:
        """Whether gradients travel in another way than as they are."""
        return self.bits != 32 or self.topk is not None


def check_ring(compression: RunCompression, dense: str) -> None:
    """Refuse what a ring, whose members keep nothing back, cannot do."""
    if dense == "ring" and (compression.topk is not None or compression.bits in ("auto", 2, 1)):
        raise SpecError(
            f"is {compression.topk or compression.bits}, and the dense parameters are a ring's",
            key="compression.bits" if compression.topk is None else "compression.topk",
            hint='a ring takes 32, 16, 8 or 4 bits; the others need servers: training.dense = "ps"',
        )
