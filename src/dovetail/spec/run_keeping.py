"""The sections of a run file about what is kept of a run, and what it is tried on."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dovetail.spec.checks import check_number, check_whole_number
from dovetail.spec.run_section import Meta, Section


class RunSaving(Section, frozen=True):
    """When the state of the run is kept; it always is at the end."""

    every_steps: Annotated[int | None, Meta(description="steps (in ssp and async: tasks) from one to the next")] = None
    every_s: Annotated[float | None, Meta(description="seconds from one to the next, as well")] = 300.0
    keep: Annotated[int, Meta(description="how many of the newest are kept, at least 1")] = 3

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.every_steps is not None:
            check_whole_number(self, "every_steps", at_least=1)
        if self.every_s is not None:
            check_number(self, "every_s", above=0.0)
        check_whole_number(self, "keep", at_least=1)


class RunValidation(Section, frozen=True):
    """Data that are not trained on, and when the model is tried on them; absent, it is not."""

    name: Annotated[str | None, Meta(description="data as in [data]; absent: those of the run")] = None
    options: Annotated[
        dict[str, Any], Meta(description="options of these data, on top of the run's where they are of one name")
    ] = msgspec.field(default_factory=dict)
    samples: Annotated[int, Meta(description="how many samples are looked at, at most")] = 100_000
    every_steps: Annotated[int | None, Meta(description="steps from one to the next")] = None
    every_epochs: Annotated[
        int | None, Meta(description="epochs from one to the next; absent both: at the end of every epoch")
    ] = None
    metric: Annotated[str, Meta(description="what is best: loss, or a metric of the model")] = "loss"
    patience: Annotated[
        int | None, Meta(description="how often in a row it may not get better before the run stops; absent: never")
    ] = None
    least_gain: Annotated[float, Meta(description="by how much it has to get better to count")] = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_whole_number(self, "samples", at_least=1)
        for name in ("every_steps", "every_epochs", "patience"):
            if getattr(self, name) is not None:
                check_whole_number(self, name, at_least=1)
        check_number(self, "least_gain", at_least=0.0)

    @property
    def is_wanted(self) -> bool:
        """Whether there is any."""
        return bool(self.name or self.options or self.every_steps or self.every_epochs or self.patience)

    @property
    def epochs(self) -> int | None:
        """Epochs from one to the next; None where steps count."""
        return self.every_epochs or (None if self.every_steps else 1)
