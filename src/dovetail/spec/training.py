"""How much there is to train, and how fast it has to go."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.spec.checks import check_number, check_whole_number


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work: `samples` seen `epochs` times, at no less than `min_samples_per_s`."""

    samples: Annotated[int, Meta(description="how many samples one epoch has, e.g. samples = 45_840_617")]
    batch: Annotated[int, Meta(description="the batch that the layers' times were measured for, e.g. batch = 4096")]
    epochs: Annotated[float, Meta(description="how often the samples are seen, e.g. epochs = 1")] = 1.0
    min_samples_per_s: Annotated[
        float, Meta(description="the throughput floor, e.g. min_samples_per_s = 200_000; 0 = no floor")
    ] = 0.0

    def __post_init__(self) -> None:
        """Refuse an amount of work that is none."""
        check_whole_number(self, "samples", at_least=1)
        check_whole_number(self, "batch", at_least=1)
        check_number(self, "epochs", above=0)
        check_number(self, "min_samples_per_s", at_least=0)

    @property
    def total_samples(self) -> float:
        """Samples over all epochs."""
        return float(self.samples) * self.epochs
