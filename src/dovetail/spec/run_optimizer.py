"""The sections of a run file about how parameters are updated."""

from __future__ import annotations

from typing import Annotated

import msgspec

from dovetail.errors import SpecError
from dovetail.spec.checks import check_number
from dovetail.spec.run_section import Meta, Section


class RunSchedule(Section, frozen=True):
    """How the learning rate changes."""

    name: Annotated[str, Meta(description="constant, warmup, inverse-sqrt, linear or cosine")] = "constant"
    warmup_steps: Annotated[int | None, Meta(description="steps of rising rates")] = None
    total_steps: Annotated[int | None, Meta(description="steps until the rate has fallen, for linear and cosine")] = (
        None
    )
    floor: Annotated[float | None, Meta(description="the factor that the rate falls to, for linear and cosine")] = None

    def settings(self) -> dict[str, float]:
        """Return the settings that were given."""
        given = {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps, "floor": self.floor}
        return {name: value for name, value in given.items() if value is not None}


class RunGroup(Section, frozen=True):
    """Dense parameters, by the names they have in the model."""

    pattern: Annotated[str, Meta(description="of names, with * and ?, e.g. *.bias")]
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the optimizer's")] = None
    settings: Annotated[dict[str, float], Meta(description="on top of the optimizer's, e.g. { weight_decay = 0 }")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        """Refuse no pattern, and a rate that is not above zero."""
        if not self.pattern.strip():
            raise SpecError("is empty", key="pattern", hint='name parameters, e.g. "*.bias"')
        if self.learning_rate is not None:
            check_number(self, "learning_rate", above=0.0)


class RunOptimizer(Section, frozen=True):
    """What updates the parameters, on the servers."""

    name: Annotated[
        str | None,
        Meta(description="of dense parameters: sgd, momentum, adagrad, adam, adamw; absent: the model's own"),
    ] = None
    learning_rate: Annotated[float | None, Meta(description="above zero; absent: the model's own")] = None
    rows: Annotated[
        str | None,
        Meta(description="of embedding rows: sgd, adagrad, row-wise-adagrad, adam, ftrl; absent: as `name`"),
    ] = None
    rows_learning_rate: Annotated[float | None, Meta(description="of embedding rows; absent: learning_rate")] = None
    settings: Annotated[
        dict[str, float], Meta(description="of the dense one, e.g. { beta1 = 0.9, beta2 = 0.98, weight_decay = 0.1 }")
    ] = msgspec.field(default_factory=dict)
    rows_settings: Annotated[dict[str, float], Meta(description="of that of rows, e.g. { first_sum = 0.1 }")] = (
        msgspec.field(default_factory=dict)
    )
    groups: Annotated[
        tuple[RunGroup, ...],
        Meta(description="dense parameters with settings of their own; the first that fits counts"),
    ] = ()
    schedule: RunSchedule = RunSchedule()
    clip_norm: Annotated[
        float | None, Meta(description="the most that the norm of the dense gradient may be, above zero")
    ] = None
    clip_value: Annotated[
        float | None, Meta(description="the most that a number of the dense gradient may be, either way, above zero")
    ] = None

    def __post_init__(self) -> None:
        """Refuse rates and limits that are not above zero."""
        for name in ("learning_rate", "rows_learning_rate", "clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_number(self, name, above=0.0)
